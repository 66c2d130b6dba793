"""Bodies and answers of ``/v1/embeddings``, ``/v1/rerank`` and ``/v1/score``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from openai_gateway.protocol.fields import MAX_INT32, FieldError, Strict, Text
from openai_gateway.protocol.prompts import PromptTokens, each_of

MOST_TEXTS = 2048  # OpenAI's

Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS, fail_fast=True)]


class EmbeddingRequest(Strict):
    """Body of ``POST /v1/embeddings``: a text, several, or the same as tokens."""

    model: Text | None = None
    input: Text | Texts | PromptTokens | Annotated[list[PromptTokens], Field(min_length=1, max_length=MOST_TEXTS)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=MAX_INT32)
    user: str | None = None

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """The texts, each one text or tokens."""
        return each_of(self.input)


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
    """Answer of ``POST /v1/embeddings``."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: TokenCounts


class Document(Strict):
    """A text to be ranked."""

    text: Text


class RerankRequest(Strict):
    """Body of ``POST /v1/rerank``."""

    model: Text | None = None
    query: Text
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=MOST_TEXTS, fail_fast=True)]
    top_n: int | None = Field(None, ge=0, le=MAX_INT32)
    return_documents: bool = True
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [document if isinstance(document, str) else document.text for document in self.documents]


class RankedDocument(BaseModel):
    """A document, and how near it is to the query: the cosine of their vectors."""

    index: int
    document: dict[str, str] | None = None
    relevance_score: float


class Ranking(BaseModel):
    """Answer of ``POST /v1/rerank``, the nearest document first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: TokenCounts


class ScoreRequest(Strict):
    """Body of ``POST /v1/score``: one text and others, or as many as there are others."""

    model: Text | None = None
    text_1: Text | Texts
    text_2: Text | Texts
    user: str | None = None

    @model_validator(mode="after")
    def _make_pairs(self) -> ScoreRequest:
        if len(self.firsts) not in (1, len(self.seconds)):
            raise FieldError("text_1", "text_1 must be one text, or as many as text_2")
        return self

    @property
    def firsts(self) -> list[str]:
        """The texts of ``text_1``."""
        return [self.text_1] if isinstance(self.text_1, str) else self.text_1

    @property
    def seconds(self) -> list[str]:
        """The texts of ``text_2``."""
        return [self.text_2] if isinstance(self.text_2, str) else self.text_2


class Score(BaseModel):
    """How near the texts of a pair are: the cosine of their vectors."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(BaseModel):
    """Answer of ``POST /v1/score``."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: TokenCounts
