"""Bodies of ``/api/chat``, ``/api/generate``, ``/api/embed`` and ``/api/show``, and what they are to OpenAI."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BeforeValidator, Field, ValidationError

from openai_gateway.endpoints.chat.protocol import ChatCompletionRequest
from openai_gateway.endpoints.embeddings.protocol import MOST_TEXTS
from openai_gateway.protocol.fields import MAX_INT32, MAX_ITEMS, AnyText, JsonObject, Strict, Text, at_most

# Ollama's name of an option -> ours. Others are about how it runs models.
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_LATEST = ":latest"  # clients add it to names without a tag

Pictures = Annotated[list[Text], Field(max_length=1024, fail_fast=True)]
Thinks = bool | Literal["low", "medium", "high"]


class OllamaCallFunction(Strict):
    """The function of a call, and its arguments as an object."""

    name: Text
    arguments: JsonObject


class OllamaCall(Strict):
    """A call in a message of the assistant's."""

    function: OllamaCallFunction


class OllamaMessage(Strict):
    """A message; its pictures are base64."""

    role: Literal["system", "user", "assistant", "tool"]
    content: AnyText = ""
    thinking: AnyText | None = None
    images: Pictures | None = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_name: AnyText | None = None

    def as_openai(self) -> dict[str, Any]:
        """Return the message as chat completions have it."""
        message: dict[str, Any] = {"role": self.role, "content": _content(self.content, self.images)}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.tool_name:
            message["name"] = self.tool_name
        if self.tool_calls:
            calls = [call.function for call in self.tool_calls]
            message["tool_calls"] = [
                {"id": f"call_{number}", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
                for number, call in enumerate(calls)
            ]
        return message


class Asked(Strict):
    """What both ways to generate share."""

    model: Text
    stream: bool | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: JsonObject | None = None
    think: Thinks | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces: it does unless told not to."""
        return self.stream is not False

    def _fields(self) -> dict[str, Any]:
        """Return the fields of a chat completion but its messages and tools."""
        options = self.options or {}
        fields: dict[str, Any] = {ours: options[theirs] for theirs, ours in _OPTIONS.items() if theirs in options}
        most = options.get("num_predict")
        if not (isinstance(most, int) and most < 0):  # -1: no bound
            fields["max_tokens"] = most
        if self.format:
            schema = {"type": "json_schema", "json_schema": {"name": "format", "schema": self.format}}
            fields["response_format"] = {"type": "json_object"} if self.format == "json" else schema
        if isinstance(self.think, bool):
            fields["enable_thinking"] = self.think
        elif self.think is not None:
            fields["reasoning_effort"] = self.think
        return fields


class ChatRequest(Asked):
    """Body of ``POST /api/chat``."""

    messages: Annotated[list[OllamaMessage], Field(min_length=1, fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
    tools: list[JsonObject] | None = None

    def as_openai(self) -> ChatCompletionRequest:
        """Return the chat completion; refuse what it refuses."""
        messages = [message.as_openai() for message in self.messages]
        return _checked(self._fields() | {"model": self.model, "messages": messages, "tools": self.tools})


class GenerateRequest(Asked):
    """Body of ``POST /api/generate``."""

    prompt: AnyText = ""
    suffix: AnyText | None = None
    system: AnyText | None = None
    images: Pictures | None = None
    raw: bool | None = None

    def as_openai(self, plain: str | None = None) -> ChatCompletionRequest:
        """Return the chat completion, of one question or, where it is given, of a text that goes on as it is."""
        if plain is not None:
            return _checked(self._fields() | {"model": self.model, "messages": plain})
        system = [{"role": "system", "content": self.system}] if self.system else []
        question = {"role": "user", "content": _content(self.prompt, self.images)}
        return _checked(self._fields() | {"model": self.model, "messages": [*system, question]})


class EmbedRequest(Strict):
    """Body of ``POST /api/embed``."""

    model: Text
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS, fail_fast=True)]
    dimensions: int | None = Field(None, ge=1, le=MAX_INT32)


class ShowRequest(Strict):
    """Body of ``POST /api/show``."""

    model: Text | None = None
    name: Text | None = None


def name_of(model: str) -> str:
    """Return a model's name without the tag that clients add."""
    return model.removesuffix(_LATEST)


def _content(text: str, pictures: list[str] | None) -> Any:
    if not pictures:
        return text
    shown = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{each}"}} for each in pictures]
    return [*shown, {"type": "text", "text": text}]


def _checked(fields: dict[str, Any]) -> ChatCompletionRequest:
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError([one | {"loc": ("body", *one["loc"])} for one in errors], body=fields) from None
