"""Vicuna, and what follows its format: WizardLM, LLaVA, Mini-Gemini (their texts)."""

from typing import Any

from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import Layout

_VICUNA: dict[str, Any] = {
    "meta_instruction": "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions.",
    "eosys": " ",
    "user": "USER: ",
    "eoh": " ",
    "assistant": "ASSISTANT: ",
    "eoa": "</s>",
    "stop_words": ["</s>"],
    "layout": Layout(model_writes_space=True),
}

for _name in ("vicuna", "wizardlm", "mini-gemini-vicuna"):
    builtin(_name, _VICUNA)
builtin(
    "llava-v1",
    _VICUNA,
    meta_instruction="A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions.",
)
