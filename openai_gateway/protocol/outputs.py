"""Common parts of the responses of both kinds of completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length"]


class PromptTokens(BaseModel):
    """Counts of a prompt's tokens."""

    cached_tokens: int = 0


class CompletionTokens(BaseModel):
    """Counts of a response's tokens."""

    reasoning_tokens: int = 0


class Usage(BaseModel):
    """Token counts of one response; with ``include_cache_report`` also ``cache_report``, a list for several prompts."""

    model_config = ConfigDict(extra="allow")

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens = Field(default_factory=PromptTokens)
    completion_tokens_details: CompletionTokens = Field(default_factory=CompletionTokens)

    @property
    def report(self) -> dict[str, Any]:
        """The member ``cache_report``, where it was asked for."""
        return self.model_extra or {}


class TopLogprob(BaseModel):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token at a position, and the most likely ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities of a chat response."""

    content: list[TokenLogprob]
    refusal: None = None


@dataclass(slots=True)  # there may be a hundred thousand of them
class PromptLogprob:
    """One token at a place of a prompt; `rank` 1 is the most likely one, null: not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Of each token of a prompt, as vLLM reports them: the token there and the most likely ones by their ids; null: nothing
predicted it."""


class CompletionLogprobs(BaseModel):
    """Log probabilities of a completion; one entry a token in each list."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
