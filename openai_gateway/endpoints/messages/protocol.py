"""Body of ``POST /v1/messages``, in the form of Anthropic's API (docs.anthropic.com, Messages)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from openai_gateway.protocol.fields import (
    MAX_INT32,
    MAX_ITEMS,
    AnyText,
    FieldError,
    JsonObject,
    NotImplementedFields,
    Strict,
    Text,
    Tokens,
    at_most,
    small,
    thinking_options,
)
from openai_gateway.protocol.generation import SamplingFields, StopWord
from openai_gateway.protocol.tools import MAX_TOOLS, Function, FunctionName, Tool


class TextBlock(Strict):
    """A text."""

    type: Literal["text"]
    text: AnyText


class ImageSource(Strict):
    """Where a picture is: in the request, or somewhere."""

    type: Literal["base64", "url"]
    media_type: AnyText | None = None
    data: AnyText | None = None
    url: AnyText | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ImageSource:
        wanted = "data" if self.type == "base64" else "url"
        if getattr(self, wanted) is None:
            raise FieldError(wanted, f"{wanted} is required in a source of type {self.type}")
        return self

    @property
    def address(self) -> str:
        """As chat completions name pictures."""
        return self.url or f"data:{self.media_type or 'image/png'};base64,{self.data}"


class ImageBlock(Strict):
    """A picture, for models that see."""

    type: Literal["image"]
    source: ImageSource


class ToolUseBlock(Strict):
    """A call the model made earlier."""

    type: Literal["tool_use"]
    id: AnyText
    name: AnyText
    input: JsonObject

    def for_template(self) -> dict[str, Any]:
        """Return the call as it is in chat completions."""
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ThinkingBlock(Strict):
    """What the model thought earlier."""

    type: Literal["thinking"]
    thinking: AnyText


class RedactedBlock(Strict):
    """Thoughts of another server's, which nobody here can read: left out."""

    type: Literal["redacted_thinking"]


Shown = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ToolResultBlock(Strict):
    """What a call returned."""

    type: Literal["tool_result"]
    tool_use_id: AnyText
    content: AnyText | Annotated[list[Shown], Field(fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))] | None = None
    is_error: bool | None = None


Block = Annotated[
    TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedBlock,
    Field(discriminator="type"),
]
Texts = AnyText | Annotated[list[TextBlock], Field(fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]


class InputMessage(Strict):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: AnyText | Annotated[list[Block], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]

    def for_template(self) -> Iterator[dict[str, Any]]:
        """Yield the message as chat templates read it: what tools returned, in messages of their own, first."""
        if isinstance(self.content, str):
            yield {"role": self.role, "content": self.content}
            return
        for block in self.content:
            if isinstance(block, ToolResultBlock):
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _shown(block.content or "")}
        message: dict[str, Any] = {"role": self.role}
        parts = [block for block in self.content if isinstance(block, TextBlock | ImageBlock)]
        message["content"] = _shown(parts)
        if calls := [block.for_template() for block in self.content if isinstance(block, ToolUseBlock)]:
            message["tool_calls"] = calls
        if thoughts := "".join(block.thinking for block in self.content if isinstance(block, ThinkingBlock)):
            message["reasoning_content"] = thoughts
        if parts or calls or thoughts:
            yield message


def _shown(content: str | list[Any]) -> Any:
    """Return texts as one, or parts where there are pictures."""
    if isinstance(content, str):
        return content
    if all(isinstance(block, TextBlock) for block in content):
        return "".join(block.text for block in content)
    return [
        {"type": "text", "text": block.text}
        if isinstance(block, TextBlock)
        else {"type": "image_url", "image_url": {"url": block.source.address}}
        for block in content
    ]


class ToolParam(Strict):
    """A function the model may call."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: AnyText | None = None
    input_schema: JsonObject

    def as_tool(self) -> Tool:
        """Return the tool in the form of chat completions."""
        function = Function(name=self.name, description=self.description, parameters=self.input_schema)
        return Tool(type="function", function=function)


class ToolChoice(Strict):
    """Which tools are to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Strict):
    """Who asks."""

    user_id: AnyText | None = None


class ThinkingConfig(Strict):
    """Whether the model is to think, and how many tokens it may take for that."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=0, le=MAX_INT32)


class Prompted(Strict):
    """What an answer, and the count of a prompt's tokens, is made from."""

    model: Text
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
    system: Texts | None = None
    tools: Annotated[list[ToolParam], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(small)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Prompted:
        if self.messages[-1].role == "assistant":
            raise FieldError("messages", "messages must end with the user's: beginnings of answers are not continued")
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool") and not self.forced_tools:
            raise FieldError("tool_choice", "tool_choice must be about one of tools")
        return self

    @property
    def for_template(self) -> list[dict[str, Any]]:
        """The conversation as chat templates read it."""
        said = [message for given in self.messages for message in given.for_template()]
        if system := _shown(self.system or ""):
            said.insert(0, {"role": "system", "content": system})
        return said

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools the model may call."""
        if self.tool_choice is not None and self.tool_choice.type == "none":
            return []
        return [tool.as_tool() for tool in self.tools or ()]

    @property
    def forced_tools(self) -> list[Tool]:
        """The tools of which one has to be called; none: the model decides."""
        choice = self.tool_choice
        if choice is None or choice.type not in ("any", "tool"):
            return []
        return [tool for tool in self.usable_tools if choice.type == "any" or tool.function.name == choice.name]

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template."""
        thinks = {"enabled": True, "disabled": False}.get(self.thinking.type) if self.thinking else None
        return thinking_options(None, thinks)


class MessagesRequest(Prompted, SamplingFields):
    """Body of ``POST /v1/messages``."""

    not_implemented: ClassVar[NotImplementedFields] = {"mcp_servers": ([],), "container": ()}

    max_tokens: Tokens
    stop_sequences: Annotated[list[StopWord], Field(max_length=32, fail_fast=True)] | None = None
    metadata: Metadata | None = None

    @property
    def max_calls(self) -> int | None:
        """How many calls are told; None: all."""
        return 1 if self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use else None

    @property
    def tells_thoughts(self) -> bool:
        """Whether thoughts are part of the answer."""
        return self.thinking is None or self.thinking.type != "disabled"

    def generation_inputs(self) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, and what from."""
        return super().generation_inputs() | {
            "messages": self.for_template,
            "template_options": self.template_options,
            "want_cached_len": True,
            "max_new_tokens": self.max_tokens,
            "stop_words": [*(self.stop_sequences or ())],
        }
