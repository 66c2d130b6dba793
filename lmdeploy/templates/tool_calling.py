"""Templates of models that were trained to call tools."""

from abc import abstractmethod
from typing import ClassVar

from lmdeploy.templates.calls import Call, Tool, parsed_arguments
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.strings import BaseChatTemplate
from lmdeploy.templates.tool_call_formats import ToolCallFormat


class ToolChatTemplate(BaseChatTemplate):
    """A template of plain strings that also writes tools, calls and what they return."""

    calls: ClassVar[ToolCallFormat]  # what calls are written in

    @property
    def tool_call_format(self) -> ToolCallFormat | None:
        """How the model writes calls."""
        return self.calls if self.capability == "chat" else None

    def lists_tools(self) -> bool:
        """Return whether turns are written at all."""
        return self.capability == "chat" or super().lists_tools()

    def writes_calls(self) -> bool:
        """Return the same."""
        return self.lists_tools()

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
        """Return a response with what is around it."""
        return f"{self.assistant}{text}{self.eoa}{self.separator}"

    @abstractmethod
    def _with_tools(self, messages: list[Message], functions: list[Tool]) -> list[Message]:
        """Return the conversation with what the model may call."""

    @abstractmethod
    def _call_turn(self, content: str, calls: list[Call]) -> str:
        """Return a response that made calls, with what is around it."""
