"""Qwen of all generations."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmdeploy.templates.calls import Call, Tool, as_json, results_as_user_turns
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.families.chatml import CHATML
from lmdeploy.templates.families.registration import builtin
from lmdeploy.templates.tool_call_formats.catalogue import QWEN
from lmdeploy.templates.tool_calling import ToolChatTemplate

if TYPE_CHECKING:
    from typing_extensions import Self

_BEGIN_OF_REASONING = "<think>"
_END_OF_REASONING = "</think>"
_NO_REASONING = f"{_BEGIN_OF_REASONING}\n\n{_END_OF_REASONING}\n\n"


class Qwen25ChatTemplate(ToolChatTemplate):
    """Qwen2.5: tools end the system prompt, what they return comes in turns of the user."""

    calls = QWEN

    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        system, others = self._system(messages)
        listed = "\n".join(as_json({"type": "function", "function": function}) for function in functions)
        text = (
            ("\n\n".join(filter(None, [system, "# Tools"])))
            + "\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{listed}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}'
            "\n</tool_call>"
        )
        return [{"role": "system", "content": text}, *others]

    def _call_turn(self, content: str, calls: list[Call]) -> str:
        return self._answer("\n".join(filter(None, [content, QWEN.write(calls)])))

    def _arranged(self, messages: list[Message]) -> list[Message]:
        """Return the messages with what several tools returned in one turn of the user."""
        return results_as_user_turns(super()._arranged(messages))


class Qwen3ChatTemplate(Qwen25ChatTemplate):
    """Qwen3: as Qwen2.5, but answers before the user's last question are written without their reasoning.

    With ``enable_thinking`` false the model finds its reasoning done.
    """

    _thinks = True

    def with_options(self, options: Mapping[str, Any]) -> "Self":
        """Return the template with or without reasoning."""
        other = copy.copy(self)
        other._thinks = options.get("enable_thinking") is not False
        return other

    def mentions(self, text: str) -> bool:
        """Return whether it is one of the tags around reasoning."""
        return text in (_BEGIN_OF_REASONING, _END_OF_REASONING)

    def _render(self, messages: list[Message], tools: list[Tool] | None, add_generation_prompt: bool) -> str:
        prompt = super()._render(messages, tools, add_generation_prompt)
        return prompt if self._thinks or not add_generation_prompt else prompt + _NO_REASONING

    def _arranged(self, messages: list[Message]) -> list[Message]:
        arranged = super()._arranged(messages)
        users = [i for i, message in enumerate(arranged) if message["role"] == "user" and "is_response" not in message]
        last_question = max(users, default=len(arranged))
        return [_without_reasoning(message) for message in arranged[:last_question]] + arranged[last_question:]


def _without_reasoning(message: Message) -> Message:
    if message["role"] != "assistant" or _END_OF_REASONING not in message["content"]:
        return message
    return {**message, "content": message["content"].rpartition(_END_OF_REASONING)[2].lstrip("\n")}


builtin("qwen", CHATML, meta_instruction="You are a helpful assistant.")
builtin(
    "qwen2d5",
    CHATML,
    Qwen25ChatTemplate,
    meta_instruction="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
)
builtin("qwen3", CHATML, Qwen3ChatTemplate)
