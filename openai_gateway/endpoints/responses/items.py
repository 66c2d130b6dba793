"""Items of ``input`` of ``POST /v1/responses``: those of a conversation, or references to stored ones."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from openai_gateway.endpoints.responses.tools import INPUT
from openai_gateway.media import DOCUMENT
from openai_gateway.protocol.fields import MAX_ITEMS, AnyText, FieldError, Items, Strict, at_most
from openai_gateway.protocol.messages import RefusalPart
from openai_gateway.protocol.tools import ArgumentsText

# Items of OpenAI's servers, and of tools that are not offered here: left out, as those tools are.
LEFT_OUT = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call",
    "computer_call_output", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
    "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request",
    "mcp_approval_response", "tool_search_call", "tool_search_output",
)  # fmt: skip


class ContentPart(Strict):
    """A piece of a message."""

    type: Literal["input_text", "output_text", "text"]
    text: AnyText


class ImagePart(Strict):
    """An image in a message, for vision-language models."""

    type: Literal["input_image"]
    image_url: AnyText
    detail: Literal["auto", "low", "medium", "high"] | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the part as it is in chat completions."""
        detail = {} if self.detail is None else {"detail": self.detail}
        return {"type": "image_url", "image_url": {"url": self.image_url, **detail}}


class FilePart(Strict):
    """A file that a tool returned, which is not read."""

    type: Literal["input_file"]

    def for_template(self) -> dict[str, Any]:
        """Return a text in its place."""
        return {"type": DOCUMENT}


Parts = Items[Annotated[ContentPart | ImagePart | RefusalPart | FilePart, Field(discriminator="type")]]


def _shown(content: str | list[Any]) -> Any:
    """Return content as it is shown to the model: text, or parts where there are images."""
    if isinstance(content, str):
        return content
    media = (ImagePart, FilePart)
    if not any(isinstance(part, media) for part in content):
        return "".join(part.text for part in content)
    return [part.for_template() if isinstance(part, media) else {"type": "text", "text": part.text} for part in content]


class InputMessage(Strict):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: AnyText | Parts

    @model_validator(mode="after")
    def _has_content(self) -> InputMessage:
        if self.content == [] and self.role != "assistant":
            raise FieldError("content", f"content must have at least one part in a message of role {self.role}")
        return self

    @property
    def shown(self) -> Any:
        """The content as it is shown to the model."""
        return _shown(self.content)


class InputCall(Strict):
    """A call the model made earlier."""

    type: Literal["function_call"]
    call_id: AnyText
    name: AnyText
    namespace: AnyText | None = None
    arguments: ArgumentsText = "{}"


class InputCustomCall(Strict):
    """A call of a freeform tool that the model made earlier."""

    type: Literal["custom_tool_call"]
    call_id: AnyText
    name: AnyText
    namespace: AnyText | None = None
    input: AnyText

    @property
    def arguments(self) -> str:
        """As a function's."""
        return json.dumps({INPUT: self.input}, ensure_ascii=False)


class InputCallOutput(Strict):
    """Result of a tool call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: AnyText
    output: AnyText | Parts

    @property
    def shown(self) -> Any:
        """The output as it is shown to the model."""
        return _shown(self.output)


class ReasoningText(Strict):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"]
    text: AnyText


class InputReasoning(Strict):
    """Earlier reasoning of the model."""

    type: Literal["reasoning"]
    content: Items[ReasoningText] | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(part.text for part in self.content or ())


class ItemReference(Strict):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"]
    id: AnyText


class LeftOutItem(Strict):
    """A record of a tool that is not a function."""

    type: Literal[LEFT_OUT]  # type: ignore[valid-type]


_TAGS = {
    "message": "MESSAGE",
    "function_call": "CALL",
    "custom_tool_call": "CUSTOM CALL",
    "function_call_output": "OUTPUT",
    "custom_tool_call_output": "OUTPUT",
    "reasoning": "REASONING",
    "item_reference": "REFERENCE",
} | dict.fromkeys(LEFT_OUT, "LEFT OUT")


def _tag(item: object) -> str | None:
    """Return which form of an item is meant; in capitals, so that errors do not name it as a part of the path."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return _TAGS.get(str(kind))


InputItem = Annotated[
    Annotated[InputMessage, Tag("MESSAGE")]
    | Annotated[InputCall, Tag("CALL")]
    | Annotated[InputCustomCall, Tag("CUSTOM CALL")]
    | Annotated[InputCallOutput, Tag("OUTPUT")]
    | Annotated[InputReasoning, Tag("REASONING")]
    | Annotated[ItemReference, Tag("REFERENCE")]
    | Annotated[LeftOutItem, Tag("LEFT OUT")],
    Discriminator(
        _tag,
        custom_error_type="unknown_item",
        custom_error_message=f"Input should be an item of one of the types {', '.join(_TAGS)}",
    ),
]
InputItems = Annotated[list[InputItem], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
