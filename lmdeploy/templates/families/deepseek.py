"""DeepSeek: chat (LLM, MoE, V2), VL, Coder, V2.5 and later."""

from typing import Any

from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import BaseChatTemplate, Layout

_END = "<｜end▁of▁sentence｜>"


class DeepSeekV3ChatTemplate(BaseChatTemplate):
    """DeepSeek V2.5, V3 and R1: answers are written without their reasoning."""

    def mentions(self, text: str) -> bool:
        """Return whether it is one of the marks around reasoning."""
        return text in ("<think>", "</think>")

    def _arranged(self, messages: list[Message]) -> list[Message]:
        return [
            {**message, "content": message["content"].rpartition("</think>")[2]}
            if message["role"] == "assistant"
            else message
            for message in super()._arranged(messages)
        ]


_DEEPSEEK: dict[str, Any] = {
    "eosys": "\n\n",
    "user": "User: ",
    "eoh": "\n\n",
    "assistant": "Assistant: ",
    "eoa": _END,
    "stop_words": [_END],
    "layout": Layout(model_writes_space=True),
}

builtin("deepseek", _DEEPSEEK)
builtin(
    "deepseek-vl",
    _DEEPSEEK,
    meta_instruction="You are a helpful language and vision assistant. You are able to understand the visual content "
    "that the user provides, and assist the user with a variety of tasks using natural language.",
)
builtin(
    "deepseek-v3",
    {
        "user": "<｜User｜>",
        "assistant": "<｜Assistant｜>",
        "eoa": _END,
        "stop_words": [_END],
    },
    DeepSeekV3ChatTemplate,
)
builtin(
    "deepseek-coder",
    {
        "meta_instruction": "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
        "Deepseek Company, and you only answer questions related to computer science. For politically sensitive "
        "questions, security and privacy issues, and other non-computer science questions, you will refuse to answer\n",
        "user": "### Instruction:\n",
        "eoh": "\n",
        "assistant": "### Response:\n",
        "eoa": "\n<|EOT|>",
        "separator": "\n",
        "stop_words": ["<|EOT|>"],
        "layout": Layout(infilling="<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>"),
    },
)
