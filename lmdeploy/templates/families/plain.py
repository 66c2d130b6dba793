"""Small families: turns that begin with plain words, Vicuna, Baichuan, Gemma, Phi-3, and templates that add nothing."""

from typing import Any

from lmdeploy.templates.families.internlm import INTERNVL2_SYSTEM
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


# Vicuna, and what follows its format: WizardLM, LLaVA, Mini-Gemini (their texts).
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


# Baichuan 1 and 2: a reserved token each for who speaks, and nothing else.
builtin("baichuan", {"user": "<reserved_102>", "assistant": "<reserved_103>"})
builtin("baichuan2", {"user": "<reserved_106>", "assistant": "<reserved_107>"})


# Gemma 1, 2 and 3; the first two were trained without system prompts, and get them as Gemma 3 does.
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


# Phi-3 and 3.5, and the InternVL models built on them (their texts).
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


# Models that complete code, and have no conversation.
builtin(
    "starcoder2",
    {},
    capability="completion",
    layout=Layout(infilling="<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>"),
)
