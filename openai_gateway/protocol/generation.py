"""The fields that say how to generate, shared by the endpoints."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from openai_gateway.protocol.fields import (
    MAX_INT32,
    MAX_SESSION,
    AnyText,
    FieldError,
    StopWord,
    Strict,
    Text,
    Tokens,
    at_most,
)

DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 1.0
DEFAULT_TOP_K = 40
ALL_THAT_IS_LEFT = -1  # the engine's word for what the prompt leaves of the session length
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20

StopWords = StopWord | Annotated[list[StopWord], Field(max_length=64, fail_fast=True)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT32)]], Field(max_length=1024, fail_fast=True)]


class StreamOptions(Strict):
    """``stream_options`` of a request."""

    include_usage: bool | None = None


class SamplingFields(Strict):
    """How to choose tokens, and when to stop. A null field has its default."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=MAX_INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    min_new_tokens: int | None = Field(None, ge=0, le=MAX_INT32)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopWords | None = None
    stop_token_ids: TokenIds | None = None
    bad_words: Annotated[list[StopWord], Field(max_length=64, fail_fast=True)] | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    user: AnyText | None = None
    session_id: int | None = Field(None, ge=-1, le=MAX_SESSION)

    @field_validator("session_id", mode="before")
    @classmethod
    def _no_session(cls, value: object) -> object:
        return None if value == "" else value  # Swagger's example in LMDeploy's documentation

    def generation_inputs(self) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, all but the token limit."""
        return {
            "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop or (),
            "stop_token_ids": self.stop_token_ids or (),
            "bad_words": self.bad_words or (),
            "stream": bool(self.stream),
            "min_new_tokens": self.min_new_tokens,
            "temperature": DEFAULT_TEMPERATURE if self.temperature is None else self.temperature,
            "top_p": DEFAULT_TOP_P if self.top_p is None else self.top_p,
            "top_k": DEFAULT_TOP_K if self.top_k is None else self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "random_seed": None if self.seed is None else self.seed % 2**64,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
        }


class GenerationFields(SamplingFields):
    """What both kinds of OpenAI completion share."""

    model: Text
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: Tokens | None = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(at_most(1024))] | None
    ) = Field(None, max_length=1024)
    stream_options: StreamOptions | None = None

    @field_validator("logit_bias")
    @classmethod
    def _keys_are_token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or ():
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_INT32):
                raise FieldError("", f"logit_bias must have token ids as keys, got {key[:60]!r}")
        return value

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
        return super().generation_inputs() | {
            "n": self.n,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": {int(key): bias for key, bias in (self.logit_bias or {}).items()} or None,
        }
