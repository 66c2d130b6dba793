"""DeepSeek: chat (LLM, MoE, V2), VL, Coder, V2.5 and later."""

from typing import Any

from lmdeploy.templates.calls import Tool
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.strings import BaseChatTemplate, Layout
from lmdeploy.templates.tool_call_formats.catalogue import DEEPSEEK_V3
from lmdeploy.templates.tool_call_formats.headed import HeadedArguments

_END = "<｜end▁of▁sentence｜>"


class DeepSeekV3ChatTemplate(BaseChatTemplate):
    """DeepSeek V2.5, V3 and R1: responses are written without their reasoning.

    Calls and what tools returned have their own tags, from which the response continues without another opening. The
    published template has no place for tools.
    """

    def mentions(self, text: str) -> bool:
        """Return whether it is one of the tags around reasoning."""
        return text in ("<think>", "</think>")

    def writes_calls(self) -> bool:
        """Return that it does."""
        return self.capability == "chat"

    @property
    def native_format(self) -> HeadedArguments | None:
        """How it writes calls."""
        return DEEPSEEK_V3 if self.capability == "chat" else None

    def _render(self, messages: list[Message], tools: list[Tool] | None, add_generation_prompt: bool) -> str:
        prompt = super()._render(messages, tools, add_generation_prompt)
        goes_on = add_generation_prompt and messages[-1]["role"] == "tool"
        return prompt.removesuffix(self.generation_prompt) if goes_on else prompt

    def _arranged(self, messages: list[Message]) -> list[Message]:
        arranged: list[Message] = []
        for message in super()._arranged(messages):
            follows_tool = bool(arranged) and arranged[-1]["role"] == "tool"
            if message["role"] == "tool":
                output = f"<｜tool▁output▁begin｜>{message['content']}<｜tool▁output▁end｜>"
                outputs = arranged.pop()["content"] if follows_tool else ""
                message = {"role": "tool", "content": outputs + output}
            elif message["role"] == "assistant":
                response = message["content"].rpartition("</think>")[2]
                message = {**message, "content": response, "goes_on": follows_tool}
            arranged.append(message)
        return arranged

    def _turn(self, message: Message) -> str:
        if message["role"] == "tool":
            return f"<｜tool▁outputs▁begin｜>{message['content']}<｜tool▁outputs▁end｜>"
        if message["role"] != "assistant":
            return super()._turn(message)
        opening = "" if message["goes_on"] else self.assistant
        return f"{opening}{message['content']}{DEEPSEEK_V3.write(message.get('tool_calls') or ())}{self.eoa}"


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
