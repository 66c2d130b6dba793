"""Content blocks of ``POST /v1/messages`` (docs.anthropic.com, Messages)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from openai_gateway.media import DOCUMENT
from openai_gateway.protocol.fields import AnyText, FieldError, Items, Strict
from openai_gateway.protocol.tools import ArgumentsObject

_BILLING = "x-anthropic-billing-header:"
"""Begins a system block of Claude Code's that is for Anthropic's servers and can differ from request to request: it
would keep all that follows it out of the prefix cache."""


class TextBlock(Strict):
    """A text."""

    type: Literal["text"]
    text: AnyText

    def parts(self) -> Iterator[dict[str, Any]]:
        """Yield the block as chat completions have it."""
        yield {"type": "text", "text": self.text}


class ImageSource(Strict):
    """Where an image is: in the request, or somewhere."""

    type: Literal["base64", "url"]
    media_type: AnyText | None = None
    data: AnyText | None = None
    url: AnyText | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ImageSource:
        required = "data" if self.type == "base64" else "url"
        if getattr(self, required) is None:
            raise FieldError(required, f"{required} is required in a source of type {self.type}")
        return self

    @property
    def address(self) -> str:
        """As chat completions name images."""
        return self.url or f"data:{self.media_type or 'image/png'};base64,{self.data}"


class ImageBlock(Strict):
    """An image, for vision-language models."""

    type: Literal["image"]
    source: ImageSource

    def parts(self) -> Iterator[dict[str, Any]]:
        """Yield the block as chat completions have it."""
        yield {"type": "image_url", "image_url": {"url": self.source.address}}


Shown = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]
SomeShown = Items[Shown]


class DocumentSource(Strict):
    """Content of a document: a text, blocks, or a file, which is not read."""

    type: Literal["text", "content", "base64", "url", "file"]
    data: AnyText = ""
    content: AnyText | SomeShown = ""


class DocumentBlock(Strict):
    """A document, which is read where its text is in the request."""

    type: Literal["document"]
    source: DocumentSource
    title: AnyText | None = None
    context: AnyText | None = None

    def parts(self) -> Iterator[dict[str, Any]]:
        """Yield the block as chat completions have it, between tags."""
        if self.source.type not in ("text", "content"):
            yield {"type": DOCUMENT}
            return
        yield from _between(
            "document", {"title": self.title, "context": self.context}, self.source.data or self.source.content
        )


class SearchResultBlock(Strict):
    """A search result of the caller, with its source."""

    type: Literal["search_result"]
    source: AnyText
    title: AnyText
    content: SomeShown

    def parts(self) -> Iterator[dict[str, Any]]:
        """Yield the block as chat completions have it, between tags."""
        yield from _between("search_result", {"title": self.title, "source": self.source}, self.content)


class LeftOutBlock(Strict):
    """A block for Anthropic's servers alone: encrypted reasoning, or a call of a tool that they ran."""

    type: Literal[
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "tool_reference",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
        "compaction",
    ]


class ToolUseBlock(Strict):
    """A call the model made earlier."""

    type: Literal["tool_use"]
    id: AnyText
    name: AnyText
    input: ArgumentsObject = Field(default_factory=dict)

    def for_template(self) -> dict[str, Any]:
        """Return the call as it is in chat completions."""
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ThinkingBlock(Strict):
    """Earlier reasoning of the model."""

    type: Literal["thinking"]
    thinking: AnyText


Returned = Annotated[
    TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | LeftOutBlock, Field(discriminator="type")
]


class ToolResultBlock(Strict):
    """Result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: AnyText
    content: AnyText | Items[Returned] | None = None
    is_error: bool | None = None


Block = Annotated[
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | LeftOutBlock,
    Field(discriminator="type"),
]
Texts = AnyText | Items[TextBlock]


def shown(content: str | list[Any]) -> Any:
    """Return the texts of blocks as one, or parts where there are images."""
    if isinstance(content, str):
        return content
    parts = [part for block in content if not isinstance(block, LeftOutBlock) for part in block.parts()]
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


def system_prompt(content: str | list[TextBlock] | None) -> str:
    """Return the text of ``system``."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block.text for block in content if not block.text.startswith(_BILLING))


def _between(tag: str, attributes: dict[str, str | None], content: str | list[Any]) -> Iterator[dict[str, Any]]:
    head = "".join(f"<{name}>{value}</{name}>\n" for name, value in attributes.items() if value)
    yield {"type": "text", "text": f"<{tag}>\n{head}"}
    blocks: list[Any] = [TextBlock(type="text", text=content)] if isinstance(content, str) else content
    for block in blocks:
        yield from block.parts()
    yield {"type": "text", "text": f"\n</{tag}>\n"}
