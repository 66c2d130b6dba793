"""The messages of a conversation."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from lmdeploy.vl.videos import MAX_FRAMES
from openai_gateway.protocol.fields import (
    MAX_ITEMS,
    AnyText,
    FieldError,
    JsonObject,
    NotImplementedFields,
    Strict,
    TokenId,
    at_most,
)
from openai_gateway.protocol.tools import FunctionCall, ToolCall

# As chat templates know them. Llama 3.1 calls a tool's response `ipython`; older OpenAI clients call it `function`;
# InternLM calls it `environment`, which templates may know.
_ROLES = {"developer": "system", "ipython": "tool", "function": "tool"}
_LEGACY_ID = "call00000"  # of a call without an id; some templates want nine letters and digits
_MAX_PIXELS = 1 << 30


class TextPart(Strict):
    """A text in a message's content."""

    type: Literal["text"]
    text: AnyText


class RefusalPart(Strict):
    """A refusal of the assistant."""

    type: Literal["refusal"]
    refusal: AnyText

    @property
    def text(self) -> str:
        """It."""
        return self.refusal


class ImageUrl(Strict):
    """Where an image is, and how it is looked at: each family of models reads what it knows."""

    url: AnyText
    detail: Literal["auto", "low", "medium", "high"] | None = None
    max_dynamic_patch: int | None = Field(None, ge=1, le=1024)
    max_slice_nums: int | None = Field(None, ge=1, le=1024)
    use_image_id: bool | None = None
    min_pixels: int | None = Field(None, ge=1, le=_MAX_PIXELS)
    max_pixels: int | None = Field(None, ge=1, le=_MAX_PIXELS)


class ImagePart(Strict):
    """An image in a message's content, for vision-language models."""

    type: Literal["image_url"]
    image_url: ImageUrl


class VideoUrl(Strict):
    """Where a video is, and how it is looked at: at most ``num_frames`` frames; ``fps`` a second of frames alone."""

    url: AnyText
    num_frames: int | None = Field(None, ge=1, le=MAX_FRAMES)
    fps: float | None = Field(None, gt=0, le=1000)
    min_pixels: int | None = Field(None, ge=1, le=_MAX_PIXELS)
    max_pixels: int | None = Field(None, ge=1, le=_MAX_PIXELS)


class VideoPart(Strict):
    """A video in a message's content, for models that accept videos."""

    type: Literal["video_url"]
    video_url: VideoUrl


_TextLike = TextPart | RefusalPart
ContentPart = Annotated[TextPart | RefusalPart | ImagePart | VideoPart, Field(discriminator="type")]


class Message(Strict):
    """One message of a conversation."""

    not_implemented: ClassVar[NotImplementedFields] = {"audio": ()}

    role: Literal["system", "developer", "user", "assistant", "tool", "ipython", "function", "environment"]
    content: (
        AnyText
        | Annotated[list[ContentPart], Field(fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
        | JsonObject
        | None
    ) = None
    name: AnyText | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: AnyText | None = None
    function_call: FunctionCall | None = Field(None, description="A call as it was before there were tool_calls.")
    refusal: AnyText | None = Field(None, description="Of the assistant, in place of content.")
    reasoning_content: AnyText | None = None
    reasoning: AnyText | None = None
    token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = Field(
        None,
        description="Of the assistant: the tokens its content was written in, as a response has them with "
        "return_token_ids. Where they write the content they are in the prompt, so that all that was said is found "
        "in the cache.",
    )

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        others = (self.tool_calls, self.function_call, self.refusal, self.reasoning_content, self.reasoning)
        if self.content in (None, []) and not (self.role == "assistant" and any(others)):
            raise FieldError("content", f"content is required in a message of role {self.role}")
        parts = self.content if isinstance(self.content, list) and self.role != "assistant" else ()
        if any(isinstance(part, RefusalPart) for part in parts):
            raise FieldError("content", f"content of type refusal is the assistant's, got role {self.role}")
        if isinstance(self.content, dict) and self.role not in (*_ROLES, "tool", "environment"):
            raise FieldError("content", f"content must be text in a message of role {self.role}, got an object")
        for field in ("tool_calls", "function_call", "token_ids"):
            if getattr(self, field) and self.role != "assistant":
                raise FieldError(field, f"{field} belong to the assistant, got role {self.role}")
        return self

    @property
    def text(self) -> str:
        """The content as text."""
        match self.content:
            case None:
                return self.refusal or ""
            case str():
                return self.content
            case dict():  # what a tool returned
                return json.dumps(self.content, ensure_ascii=False)
            case parts:
                return "".join(part.text for part in parts if isinstance(part, _TextLike)) or self.refusal or ""

    @property
    def _shown(self) -> Any:
        """The content as it is shown to the model: text, or parts where there are images."""
        if not isinstance(self.content, list) or all(isinstance(part, _TextLike) for part in self.content):
            return self.text
        return [part.model_dump(exclude_none=True) for part in self.content]

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates read it."""
        message: dict[str, Any] = {"role": _ROLES.get(self.role, self.role), "content": self._shown}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        elif self.function_call:
            call = {"id": _LEGACY_ID, "type": "function", "function": self.function_call.model_dump()}
            message["tool_calls"] = [call]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        elif self.role == "function":
            message["tool_call_id"] = _LEGACY_ID
        if reasoning := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = reasoning
        if self.token_ids:
            message["token_ids"] = self.token_ids
        return message


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
