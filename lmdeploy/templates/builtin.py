"""The built-in chat templates, as data: the formats the models' authors published."""

import functools
import re
from typing import Any

from lmdeploy.templates.base import MODELS, BaseChatTemplate
from lmdeploy.templates.conversation import Message

_CHATML: dict[str, Any] = {
    "system": "<|im_start|>system\n",
    "eosys": "<|im_end|>\n",
    "user": "<|im_start|>user\n",
    "eoh": "<|im_end|>\n",
    "assistant": "<|im_start|>assistant\n",
    "eoa": "<|im_end|>",
    "separator": "\n",
    "stop_words": ["<|im_end|>"],
}
INTERNLM2 = _CHATML | {
    "meta_instruction": "You are an AI assistant whose name is InternLM (书生·浦语).\n"
    "- InternLM (书生·浦语) is a conversational language model that is developed by Shanghai AI Laboratory "
    "(上海人工智能实验室). It is designed to be helpful, honest, and harmless.\n"
    "- InternLM (书生·浦语) can understand and communicate fluently in the language chosen by the user such as "
    "English and 中文.",
    "tool": "<|im_start|>environment\n",
    "eotool": "<|im_end|>\n",
    "stop_words": ["<|im_end|>", "<|action_end|>"],
}
QWEN = _CHATML | {"meta_instruction": "You are a helpful assistant."}
LLAMA3: dict[str, Any] = {
    "system": "<|start_header_id|>system<|end_header_id|>\n\n",
    "eosys": "<|eot_id|>",
    "user": "<|start_header_id|>user<|end_header_id|>\n\n",
    "eoh": "<|eot_id|>",
    "assistant": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "eoa": "<|eot_id|>",
    "tool": "<|start_header_id|>ipython<|end_header_id|>\n\n",
    "eotool": "<|eot_id|>",
    "stop_words": ["<|eot_id|>", "<|eom_id|>"],
}
_VICUNA: dict[str, Any] = {
    "meta_instruction": "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions.",
    "eosys": " ",
    "user": "USER: ",
    "eoh": " ",
    "assistant": "ASSISTANT: ",
    "eoa": "</s>",
    "stop_words": ["</s>"],
}
_LLAMA2: dict[str, Any] = {
    "system": "<<SYS>>\n",
    "eosys": "\n<</SYS>>\n\n",
    "user": "<s>[INST] ",
    "eoh": " [/INST]",
    "assistant": " ",
    "eoa": " </s>",
    "stop_words": ["</s>"],
}


class SpacedChatTemplate(BaseChatTemplate):
    """A template whose answers begin with a space, which the model generates itself."""

    @property
    def generation_prompt(self) -> str:
        """The opening of the assistant's turn, without that space."""
        return self.assistant.rstrip(" ")


class Llama2ChatTemplate(SpacedChatTemplate):
    """Llama 2: the system prompt stands inside the first user turn."""

    def __init__(self, **strings: Any) -> None:
        # BaseChatTemplate would put it before the first turn.
        self._default_system = strings.pop("meta_instruction", None)
        super().__init__(**strings)

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        system = self._default_system
        if messages[0]["role"] == "system":
            system, messages = messages[0]["content"], messages[1:]
        if not messages or messages[0]["role"] != "user":
            raise ValueError("messages must begin with a user message, after the system message if there is one")
        if system is not None:
            first = {"role": "user", "content": self.turn("system", system) + messages[0]["content"]}
            messages = [first, *messages[1:]]
        return super()._render(messages, tools, add_generation_prompt)


MODELS.register_module("base")(functools.partial(BaseChatTemplate, capability="completion"))
MODELS.register_module("chatml")(functools.partial(BaseChatTemplate, **_CHATML))
MODELS.register_module("internlm2")(functools.partial(BaseChatTemplate, **INTERNLM2))
MODELS.register_module("qwen")(functools.partial(BaseChatTemplate, **QWEN))
MODELS.register_module("llama3")(functools.partial(BaseChatTemplate, **LLAMA3))
MODELS.register_module("vicuna")(functools.partial(SpacedChatTemplate, **_VICUNA))
MODELS.register_module("llama2")(functools.partial(Llama2ChatTemplate, **_LLAMA2))

# For checkpoints without a template of their own; the first match decides.
_NAME_PATTERNS = (
    (r"internlm[_-]?(2|3).*(chat|instruct)", "internlm2"),
    (r"qwen2\.5.*instruct", "qwen2d5"),
    (r"qwen.*(chat|instruct)", "qwen"),
    (r"llama-?3\.1.*instruct", "llama3_1"),
    (r"llama-?3.*instruct", "llama3"),
    (r"llama-?2.*chat", "llama2"),
    (r"vicuna", "vicuna"),
)


def builtin_for(model_name: str) -> str:
    """Return the built-in template that a model's name suggests; ``base`` if none."""
    lowered = model_name.lower()
    return next((name for pattern, name in _NAME_PATTERNS if re.search(pattern, lowered)), "base")
