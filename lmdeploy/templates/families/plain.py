"""Families whose turns begin with plain words, and templates that add nothing."""

from typing import Any

from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import Layout

_SPACED = Layout(model_writes_space=True)
_COGVLM: dict[str, Any] = {
    "user": "Question: ",
    "eoh": " ",
    "assistant": "Answer: ",
    "eoa": "</s>",
    "separator": "\n",
    "stop_words": ["</s>"],
    "layout": _SPACED,
}
_ULTRA: dict[str, Any] = {
    "system": "User: ",
    "meta_instruction": "A one-turn chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, very detailed, and polite answers to the user's questions.",
    "eosys": "</s>\n",
    "user": "User: ",
    "eoh": "</s>\n",
    "assistant": "Assistant: ",
    "eoa": "</s>",
    "separator": "\n",
    "stop_words": ["</s>"],
    "layout": _SPACED,
}

for _name in ("base", "llama"):
    builtin(_name, {}, capability="completion")
builtin("puyu", {})
builtin("cogvlm", _COGVLM)
builtin("cogvlm2", _COGVLM, eoa="<|end_of_text|>", stop_words=["<|end_of_text|>"])
for _name in ("ultracm", "ultralm"):
    builtin(_name, _ULTRA)
builtin(
    "solar",
    {
        "system": "### System:\n",
        "eosys": "\n\n",
        "user": "### User:\n",
        "eoh": "\n\n",
        "assistant": "### Assistant:\n",
    },
)
builtin(
    "falcon",
    {
        "system": "System: ",
        "eosys": "\n",
        "user": "User: ",
        "eoh": "\n",
        "assistant": "Falcon: ",
        "separator": "\n",
        "stop_words": ["\nUser:"],
        "layout": _SPACED,
    },
)
builtin(
    "yi-vl",
    {
        "meta_instruction": "This is a chat between an inquisitive human and an AI assistant. Assume the role of the "
        "AI assistant. Read all the images carefully, and respond to the human's questions with informative, helpful, "
        "detailed and polite answers. 这是一个好奇的人类和一个人工智能助手之间的对话。假设你扮演这个AI助手的角色。"
        "仔细阅读所有的图像，并对人类的问题做出信息丰富、有帮助、详细的和礼貌的回答。",
        "eosys": "\n\n",
        "user": "### Human: ",
        "eoh": "\n",
        "assistant": "### Assistant: ",
        "separator": "\n",
        "stop_words": ["###"],
        "layout": _SPACED,
    },
)
builtin(
    "molmo",
    {
        "user": " User: ",
        "assistant": " Assistant: ",
        "stop_words": ["<|endoftext|>"],
        "layout": _SPACED,
    },
)
