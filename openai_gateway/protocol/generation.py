"""Generation parameters shared by the endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lmdeploy.model_metadata.sampling_defaults import is_greedy
from lmdeploy.serve.request import FIELDS
from openai_gateway.protocol.fields import (
    MAX_INT32,
    MAX_SESSION,
    AnyText,
    FieldError,
    JsonObject,
    NotImplementedFields,
    Strict,
    Text,
    Tokens,
    at_most,
)
from openai_gateway.protocol.table import OF_EVERY_BODY, body_of, given

_OF_COMPLETIONS = ("n", "presence_penalty", "frequency_penalty", "prompt_logprobs")

_MAX_BIASES = FIELDS["logit_bias"].max_items

StopWord = Annotated[Text, Field(max_length=FIELDS["stop_words"].max_bytes)]
StopWords = StopWord | Annotated[list[StopWord], Field(max_length=FIELDS["stop_words"].max_items, fail_fast=True)]


def _of_word(value: object) -> object:
    """Return a truth value that is spelt, as LMDeploy takes it too."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


class StreamOptions(Strict):
    """``stream_options`` of a request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="With include_usage: in every chunk.")


if TYPE_CHECKING:

    class _Sampling(Strict):
        temperature: float | None
        top_p: float | None
        top_k: int | None
        skip_special_tokens: bool | None

else:
    _Sampling = body_of("_Sampling", Strict, OF_EVERY_BODY)


class SamplingFields(_Sampling):
    """How to choose tokens, and when to stop. A null field has the model's default, else that of `defaults`."""

    defaults: ClassVar[Mapping[str, Any]] = {"temperature": 0.7, "top_p": 1.0, "top_k": 40}
    not_implemented: ClassVar[NotImplementedFields] = {  # vLLM's
        "use_beam_search": (False,),
        "length_penalty": (1.0,),
        "early_stopping": (False,),
        "truncate_prompt_tokens": (),
        "logits_processors": ([],),
        "return_tokens_as_token_ids": (False,),
        "mm_processor_kwargs": ({},),
    }

    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description=FIELDS["top_p"].description)
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = Field(
        None, description="Keep this many of the most likely tokens; 0 or -1: all."
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopWords | None = None
    stream: Annotated[bool, BeforeValidator(_of_word)] | None = None
    user: AnyText | None = None
    session_id: int | None = Field(None, ge=-1, le=MAX_SESSION)

    @property
    def limit_field(self) -> str:
        """Name of the field that limits the response's tokens."""
        return "max_tokens"

    @model_validator(mode="after")
    def _names_agree(self) -> SamplingFields:
        for name in OF_EVERY_BODY:
            given(self, name)
        return self

    @field_validator("session_id", mode="before")
    @classmethod
    def _no_session(cls, value: object) -> object:
        return None if value == "" else value  # Swagger's example in LMDeploy's documentation

    def generation_inputs(self, sampling_defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, all but the token limit.

        ``sampling_defaults``: the model's (`lmdeploy.model_metadata.sampling_defaults`). A greedy request takes none of
        them: it stays reproducible, whatever a checkpoint recommends.
        """
        top_p, top_k = (None, 1) if self.top_p == 0 else (self.top_p, self.top_k)
        is_recommended = bool(sampling_defaults) and not is_greedy(self.temperature, top_k)
        defaults = sampling_defaults if is_recommended else self.defaults
        chosen = {
            "top_p": defaults.get("top_p") if top_p is None else top_p,
            "top_k": defaults.get("top_k") if top_k is None else max(top_k, 0),
        }
        return (
            _of_table(self, OF_EVERY_BODY, defaults)
            | chosen
            | {
                "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop or (),
                "stream": bool(self.stream),
                "random_seed": None if self.seed is None else self.seed % 2**64,
            }
        )


def _of_table(body: SamplingFields, names: tuple[str, ...], defaults: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: given(body, name) for name in names}
    return {name: defaults.get(name) if value is None else value for name, value in values.items()}


if TYPE_CHECKING:

    class _Completions(SamplingFields):
        n: int | None
        prompt_logprobs: int | None

else:
    _Completions = body_of("_Completions", SamplingFields, _OF_COMPLETIONS)


class GenerationFields(_Completions):
    """Common fields of both kinds of OpenAI completion."""

    model: Text
    max_tokens: Tokens | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(at_most(_MAX_BIASES))] | None
    ) = Field(None, max_length=_MAX_BIASES)
    stream_options: StreamOptions | None = None
    include_stop_str_in_output: bool | None = Field(None, description="The text ends with the stop string, if any.")
    return_token_ids: bool | None = Field(None, description="Each choice has the ids of its tokens.")
    kwargs: JsonObject | None = Field(
        None, description="LMDeploy's own client sends it. Its streams have whole deltas, and no prompt is an error."
    )

    @field_validator("logit_bias")
    @classmethod
    def _keys_are_token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or ():
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_INT32):
                raise FieldError("", f"logit_bias must have token ids as keys, got {key[:60]!r}")
        return value

    @model_validator(mode="after")
    def _options_are_of_a_stream(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options is about streams; set stream to true, or leave it out")
        return self

    @model_validator(mode="after")
    def _streams_leave_prompts_out(self) -> GenerationFields:
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError("prompt_logprobs", "prompt_logprobs comes with whole responses only; leave stream out")
        return self

    @property
    def shown_stops(self) -> tuple[str, ...]:
        """The stop strings with which the text ends where one of them ends it."""
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        return tuple(stops) if self.include_stop_str_in_output else ()

    @property
    def is_of_lmdeploy(self) -> bool:
        """Whether LMDeploy's own client asks, which reads streams and prompts that are too long in its own way."""
        return "kwargs" in self.model_fields_set

    @property
    def choices(self) -> int:
        """Responses to a prompt."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def counts_always(self) -> bool:
        """Whether each chunk of a stream counts the tokens so far."""
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def generation_inputs(self, sampling_defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `GenerateRequest` that say how to generate, all but the token limit."""
        biases = {int(key): bias for key, bias in (self.logit_bias or {}).items()} or None
        return (
            super().generation_inputs(sampling_defaults)
            | _of_table(self, _OF_COMPLETIONS, {})
            | {
                "logit_bias": biases,
                "return_cached_len": self.includes_usage or not self.stream,
                "return_stop_string": bool(self.include_stop_str_in_output),
                "return_token_ids": bool(self.return_token_ids),
            }
        )
