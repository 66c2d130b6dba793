"""The fields that say how to generate, shared by the endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lmdeploy.serve.request import FIELDS
from openai_gateway.protocol.fields import (
    MAX_INT32,
    MAX_SESSION,
    AnyText,
    FieldError,
    Strict,
    Text,
    Tokens,
    at_most,
)
from openai_gateway.protocol.table import OF_EVERY_BODY, body_of

_OF_COMPLETIONS = ("n", "presence_penalty", "frequency_penalty", "prompt_logprobs")

_MAX_BIASES = FIELDS["logit_bias"].max_items

StopWord = Annotated[Text, Field(max_length=FIELDS["stop_words"].max_bytes)]
StopWords = StopWord | Annotated[list[StopWord], Field(max_length=FIELDS["stop_words"].max_items, fail_fast=True)]


class StreamOptions(Strict):
    """``stream_options`` of a request."""

    include_usage: bool | None = None


if TYPE_CHECKING:

    class _Sampling(Strict):
        temperature: float | None
        top_p: float | None

else:
    _Sampling = body_of("_Sampling", Strict, OF_EVERY_BODY)


class SamplingFields(_Sampling):
    """How to choose tokens, and when to stop. A null field has its default."""

    defaults: ClassVar[Mapping[str, Any]] = {"temperature": 0.7, "top_p": 1.0, "top_k": 40}

    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopWords | None = None
    stream: bool | None = None
    user: AnyText | None = None
    session_id: int | None = Field(None, ge=-1, le=MAX_SESSION)

    @field_validator("session_id", mode="before")
    @classmethod
    def _no_session(cls, value: object) -> object:
        return None if value == "" else value  # Swagger's example in LMDeploy's documentation

    def generation_inputs(self) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, all but the token limit."""
        return _of_table(self, OF_EVERY_BODY) | {
            "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop or (),
            "stream": bool(self.stream),
            "random_seed": None if self.seed is None else self.seed % 2**64,
        }


def _of_table(body: SamplingFields, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(body, name) for name in names}
    return {name: body.defaults.get(name) if value is None else value for name, value in values.items()}


if TYPE_CHECKING:

    class _Completions(SamplingFields):
        n: int | None
        prompt_logprobs: int | None

else:
    _Completions = body_of("_Completions", SamplingFields, _OF_COMPLETIONS)


class GenerationFields(_Completions):
    """What both kinds of OpenAI completion share."""

    model: Text
    max_tokens: Tokens | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(at_most(_MAX_BIASES))] | None
    ) = Field(None, max_length=_MAX_BIASES)
    stream_options: StreamOptions | None = None

    @field_validator("logit_bias")
    @classmethod
    def _keys_are_token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or ():
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_INT32):
                raise FieldError("", f"logit_bias must have token ids as keys, got {key[:60]!r}")
        return value

    @model_validator(mode="after")
    def _streams_leave_prompts_out(self) -> GenerationFields:
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError("prompt_logprobs", "prompt_logprobs comes with whole answers only; leave stream out")
        return self

    @property
    def choices(self) -> int:
        """Answers to a prompt."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def generation_inputs(self) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, all but the token limit."""
        biases = {int(key): bias for key, bias in (self.logit_bias or {}).items()} or None
        return (
            super().generation_inputs()
            | _of_table(self, _OF_COMPLETIONS)
            | {"logit_bias": biases, "want_cached_len": self.includes_usage or not self.stream}
        )
