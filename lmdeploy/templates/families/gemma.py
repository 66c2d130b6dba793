"""Gemma 1, 2 and 3; the first two were trained without system prompts, and get them as Gemma 3 does."""

from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import Layout

builtin(
    "gemma",
    {
        "eosys": "\n\n",
        "user": "<start_of_turn>user\n",
        "eoh": "<end_of_turn>\n",
        "assistant": "<start_of_turn>model\n",
        "eoa": "<end_of_turn>",
        "separator": "\n",
        "stop_words": ["<end_of_turn>"],
        "layout": Layout(system_in_first_user_turn=True, strips=True),
    },
)
