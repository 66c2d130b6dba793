"""Body and response of ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from lmdeploy.messages import MAX_TOP_LOGPROBS
from openai_gateway.protocol.fields import MAX_INT32, AnyText, FieldError, PromptTokens, items_of
from openai_gateway.protocol.generation import GenerationFields
from openai_gateway.protocol.outputs import CompletionLogprobs, FinishReason, PromptLogprobs, Usage
from openai_gateway.protocol.structured import StructuredFields

DEFAULT_COMPLETION_TOKENS = 16
COMPLETION_TOKENS_OF_NULL = 512  # and of 0: LMDeploy's

_MAX_ECHOED = 2**22


class CompletionRequest(GenerationFields, StructuredFields):
    """Body of ``POST /v1/completions``."""

    prompt: (
        AnyText
        | Annotated[list[AnyText], Field(min_length=1, max_length=256, fail_fast=True)]
        | PromptTokens
        | Annotated[list[PromptTokens], Field(min_length=1, max_length=256, fail_fast=True)]
    )
    suffix: AnyText | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _fields_fit_together(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.choices:
            raise FieldError("best_of", "best_of is not supported by this server beyond n; leave it out")
        if self.suffix and (self.echo or not isinstance(self.prompts[0], str)):
            raise FieldError("suffix", "suffix needs prompts that are texts, and no echo")
        if self.only_scores and self.choices > 1:
            raise FieldError("n", "n must be 1 when echo is true and max_tokens is 0: there is one response")
        if self.choices > 1 and self._reported_of_prompts() > _MAX_ECHOED:
            raise FieldError("n", "n must be lower: its responses would repeat too much of the prompt")
        return self

    def _reported_of_prompts(self) -> int:
        """Return about how many characters, or values alongside tokens of four, the prompt takes in all responses."""
        echoed = 0 if not self.echo else 1 if self.logprobs is None else 4 * (2 + self.logprobs)
        scored = 0 if self.prompt_logprobs is None else 4 * (2 + self.prompt_logprobs)
        return sum(map(len, self.prompts)) * self.choices * (echoed + scored)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, each one text or tokens."""
        return items_of(self.prompt)

    @property
    def only_scores(self) -> bool:
        """Whether the prompt is all that is to be reported, and nothing is generated."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def token_limit(self) -> int:
        """Most tokens to generate."""
        if self.only_scores:
            return 0
        if "max_tokens" not in self.model_fields_set:
            return DEFAULT_COMPLETION_TOKENS
        return self.max_tokens or COMPLETION_TOKENS_OF_NULL

    def generation_inputs(self, sampling_defaults: Mapping[str, Any]) -> dict[str, Any]:
        inputs = super().generation_inputs(sampling_defaults) | {
            "logprobs": self.logprobs,
            "response_format": self.grammar,
        }
        if self.echo and (self.logprobs is not None or self.only_scores):
            inputs["prompt_logprobs"] = max(self.logprobs or 0, self.prompt_logprobs or 0)
        return inputs


class CompletionChoice(BaseModel):
    """One response of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: Literal["repetition"] | None = None
    token_ids: list[int] | None = None


class Completion(BaseModel):
    """Response of ``POST /v1/completions`` without streaming."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
