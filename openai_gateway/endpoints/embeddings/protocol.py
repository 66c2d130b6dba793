"""Body and response of ``/v1/embeddings``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from openai_gateway.protocol.fields import MAX_INT32, NotImplementedFields, PromptTokens, Strict, Text, items_of

MAX_TEXTS = 2048  # OpenAI's
RIGHT_TRUNCATION: NotImplementedFields = {"truncation_direction": ("right", "Right")}

Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
Inputs = Text | Texts | PromptTokens | Annotated[list[PromptTokens], Field(min_length=1, max_length=MAX_TEXTS)]


class EmbeddingRequest(Strict):
    """Body of ``POST /v1/embeddings``: a text, several, or the same as tokens."""

    not_implemented: ClassVar[NotImplementedFields] = {"truncate_prompt_tokens": ()}

    model: Text | None = None
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, le=MAX_INT32)
    input_type: Text | None = None
    prompt_name: Text | None = None
    task: Text | None = None
    truncate: bool = False
    user: str | None = None

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """The texts, each one text or tokens."""
        return items_of(self.input)


class TokenCounts(BaseModel):
    """Token counts of texts; nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """The vector of one text; in base64, its float32 numbers, little-endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """Response of ``POST /v1/embeddings``."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: TokenCounts
