"""Bodies of ``/api/chat``, ``/api/generate``, ``/api/embed`` and others, and their conversion to OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from lmdeploy.messages import MAX_TOP_LOGPROBS
from openai_gateway.endpoints.chat.protocol import ChatCompletionRequest
from openai_gateway.endpoints.embeddings.protocol import MAX_TEXTS
from openai_gateway.endpoints.ollama.options import fields_of_options
from openai_gateway.errors import ApiError
from openai_gateway.protocol.fields import (
    MAX_INT32,
    AnyText,
    Duration,
    Items,
    JsonObject,
    NotImplementedFields,
    Strict,
    Text,
)
from openai_gateway.protocol.tools import ArgumentsObject

_EMBEDDING = {"options": "they are about generation and how models run"}
_LATEST = ":latest"  # clients add it to names without a tag

Images = Annotated[list[Text], Field(max_length=1024, fail_fast=True)]
Thinks = bool | Literal["low", "medium", "high"]


class OllamaCallFunction(Strict):
    """The function of a call, and its arguments as an object."""

    name: Text
    arguments: ArgumentsObject = Field(default_factory=dict)


class OllamaCall(Strict):
    """A call in a message of the assistant's."""

    function: OllamaCallFunction


class OllamaMessage(Strict):
    """A message; its images are base64."""

    role: Literal["system", "user", "assistant", "tool"]
    content: AnyText | None = None
    thinking: AnyText | None = None
    images: Images | None = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_name: AnyText | None = None

    def as_openai(self) -> dict[str, Any]:
        """Return the message as chat completions have it."""
        message: dict[str, Any] = {"role": self.role, "content": _content(self.content or "", self.images)}
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


class KeptModel(Strict):
    """The model of a request, and how long it stays in memory afterwards."""

    model: Text
    keep_alive: Duration = Field(
        None, description="Seconds, or a duration such as 5m; negative: forever; 0: the model sleeps at once."
    )


class BaseRequest(KeptModel):
    """Fields of both ways to generate."""

    grammar_field: ClassVar = "format"

    stream: bool | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: JsonObject | None = None
    think: Thinks | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def streams(self) -> bool:
        """Whether the response comes in pieces: it does unless asked not to."""
        return self.stream is not False

    def _fields(self, context_len: int | None) -> dict[str, Any]:
        """Return the fields of a chat completion but its messages and tools."""
        fields = fields_of_options(self.options or {}, context_len)
        if self.logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.format in ("json", {}):
            fields["response_format"] = {"type": "json_object"}
        elif self.format:
            schema = {"name": "format", "schema": self.format}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if isinstance(self.think, bool):
            fields["enable_thinking"] = self.think
        elif self.think is not None:
            fields["reasoning_effort"] = self.think
        return fields


class ChatRequest(BaseRequest):
    """Body of ``POST /api/chat``."""

    messages: Items[OllamaMessage] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: AnyText | JsonObject | None = Field(None, description="As for OpenAI's chat completions.")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to respond to."""
        return not self.messages

    def as_openai(self, context_len: int | None) -> ChatCompletionRequest:
        """Return the chat completion; refuse what it refuses."""
        fields = self._fields(context_len) | {"model": self.model, "tools": self.tools}
        # Ollama has nothing that makes a model call; here there is, as OpenAI's.
        fields["tool_choice"] = self.tool_choice or (self.options or {}).get("tool_choice")
        return _checked(fields | {"messages": [message.as_openai() for message in self.messages or ()]})


class GenerateRequest(BaseRequest):
    """Body of ``POST /api/generate``."""

    not_implemented: ClassVar[NotImplementedFields] = {
        "template": ("",),
        "context": ([],),
        **dict.fromkeys(("width", "height", "steps"), (0,)),
    }

    prompt: AnyText = ""
    suffix: AnyText | None = None
    system: AnyText | None = None
    images: Images | None = None
    raw: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to respond to."""
        return not (self.prompt or self.suffix or self.images)

    def as_openai(self, context_len: int | None, prompt: str | None = None) -> ChatCompletionRequest:
        """Return the chat completion, of one question or, where it is given, of a text that continues as it is."""
        fields = self._fields(context_len) | {"model": self.model}
        if prompt is not None:
            return _checked(fields | {"messages": prompt})
        system = [{"role": "system", "content": self.system}] if self.system else []
        question = {"role": "user", "content": _content(self.prompt, self.images)}
        return _checked(fields | {"messages": [*system, question]})


class EmbedRequest(KeptModel):
    """Body of ``POST /api/embed``."""

    no_effect: ClassVar[Mapping[str, str]] = _EMBEDDING

    input: AnyText | Annotated[list[Text], Field(max_length=MAX_TEXTS, fail_fast=True)]
    dimensions: int | None = Field(None, ge=1, le=MAX_INT32)
    truncate: bool | None = Field(None, description="False: a text that is too long is refused.")

    @property
    def texts(self) -> list[str]:
        """Texts to embed."""
        return ([self.input] if self.input else []) if isinstance(self.input, str) else self.input


class EmbeddingsRequest(KeptModel):
    """Body of ``POST /api/embeddings``, which Ollama had before ``/api/embed``."""

    no_effect: ClassVar[Mapping[str, str]] = _EMBEDDING

    prompt: AnyText = ""


class NamedModel(Strict):
    """Body of ``POST /api/show`` and ``DELETE /api/delete``: a model under either name of the member."""

    model: Text | None = None
    name: Text | None = None

    @property
    def required(self) -> str:
        """The model; an error 400 where none is named."""
        if (named := self.model or self.name) is None:
            raise ApiError(400, "model is required", param="model")
        return named


class PullRequest(NamedModel):
    """Body of ``POST /api/pull``."""

    stream: bool = True
    insecure: bool = False  # has no effect: which hub is asked, and how, is up to the server


def name_of(model: str) -> str:
    """Return a model's name without the tag that clients add."""
    return model.removesuffix(_LATEST)


def _content(text: str, images: list[str] | None) -> Any:
    if not images:
        return text
    shown = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in images]
    return [*shown, {"type": "text", "text": text}]


def _checked(fields: dict[str, Any]) -> ChatCompletionRequest:
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise RequestValidationError([one | {"loc": ("body", *one["loc"])} for one in errors], body=fields) from None
