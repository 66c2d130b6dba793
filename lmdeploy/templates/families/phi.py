"""Phi-3 and 3.5, and the InternVL models built on them (their texts)."""

from typing import Any

from lmdeploy.templates.families.internlm import INTERNVL2_SYSTEM
from lmdeploy.templates.families.registration import builtin

_PHI3: dict[str, Any] = {
    "system": "<|system|>\n",
    "eosys": "<|end|>\n",
    "user": "<|user|>\n",
    "eoh": "<|end|>\n",
    "assistant": "<|assistant|>\n",
    "eoa": "<|end|>",
    "separator": "\n",
    "stop_words": ["<|end|>", "<|endoftext|>", "<|assistant|>"],
}

builtin("phi-3", _PHI3)
builtin("internvl2-phi3", _PHI3, meta_instruction=INTERNVL2_SYSTEM)
builtin(
    "internvl-phi3",
    _PHI3,
    meta_instruction="You are an AI assistant whose name is Phi-3.",
    eosys="<|end|>",
    eoh="<|end|>",
    separator="",
)
