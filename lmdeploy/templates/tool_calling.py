"""Templates of models that were trained to call tools: what their formats have in common."""

import json
from abc import abstractmethod
from typing import Any

from lmdeploy.templates.conversation import Message
from lmdeploy.templates.strings import BaseChatTemplate

Tool = dict[str, Any]
Call = dict[str, Any]


def parsed_arguments(messages: list[Message]) -> list[Message]:
    """Return messages whose calls have their arguments as objects, as templates read them, not as JSON text."""
    return [
        {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def as_json(value: object, indent: int | None = None) -> str:
    """Return JSON text as the published templates write it: characters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ToolChatTemplate(BaseChatTemplate):
    """A template of plain strings that also writes tools, calls and what they return."""

    def _render(self, messages: list[Message], tools: list[Tool] | None, add_generation_prompt: bool) -> str:
        messages = parsed_arguments(messages)
        if tools and self.capability == "chat":
            messages, tools = self._with_tools(messages, [tool.get("function", tool) for tool in tools]), None
        return super()._render(messages, tools, add_generation_prompt)

    def _system(self, messages: list[Message]) -> tuple[str, list[Message]]:
        """Return the system prompt, and the other messages."""
        if messages[0]["role"] == "system":
            return messages[0]["content"], messages[1:]
        return self.meta_instruction or "", messages

    def _turn(self, message: Message) -> str:
        calls = message.get("tool_calls")
        return self._call_turn(message["content"], calls) if calls else super()._turn(message)

    def _answer(self, text: str) -> str:
        """Return an answer with what stands around it."""
        return f"{self.assistant}{text}{self.eoa}{self.separator}"

    @abstractmethod
    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        """Return the conversation with what the model may call."""

    @abstractmethod
    def _call_turn(self, content: str, calls: list[Call]) -> str:
        """Return an answer that made calls, with what stands around it."""


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call  # the model's own words, which were no JSON
    return {**call, "function": {**function, "arguments": arguments}}
