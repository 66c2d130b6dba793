"""Bodies and responses of ``/v1/rerank``, ``/v1/score``, ``/v1/classify`` and ``/v1/pooling``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, model_validator

from openai_gateway.endpoints.embeddings.protocol import MAX_TEXTS, RIGHT_TRUNCATION, Inputs, Texts, TokenCounts
from openai_gateway.protocol.fields import (
    MAX_INT32,
    AnyText,
    FieldError,
    NotImplementedFields,
    Strict,
    Text,
    exactly_one,
    items_of,
)
from openai_gateway.protocol.messages import Messages


class Document(Strict):
    """A text to be ranked."""

    text: Text


class PairSettings(Strict):
    """Common fields of bodies about pairs of texts."""

    model: Text | None = None
    instruction: AnyText | None = None
    use_activation: bool | None = None
    truncate: bool = False
    user: str | None = None


class RerankRequest(PairSettings):
    """Body of ``POST /v1/rerank``."""

    not_implemented: ClassVar[NotImplementedFields] = {"rank_fields": ([], ["text"]), **RIGHT_TRUNCATION}
    no_effect: ClassVar[Mapping[str, str]] = {
        "max_chunks_per_doc": "documents are not cut into chunks",
        "priority": "keys have turns, and their requests too",
    }

    query: Text
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)] | None = None
    top_n: int | None = Field(None, ge=0, le=MAX_INT32)  # 0, as vLLM's clients send it: all
    return_documents: bool = True
    max_tokens_per_doc: int | None = Field(None, ge=1, le=MAX_INT32)
    # In place of documents, as clients of Text Embeddings Inference (TEI) ask; their response is a list.
    texts: Texts | None = None
    raw_scores: bool = False
    return_text: bool = False

    _one_of_them = exactly_one("documents", "texts")

    @property
    def listed(self) -> list[str]:
        """The documents' texts."""
        documents = self.texts or self.documents or []
        return [document if isinstance(document, str) else document.text for document in documents]


class RankedDocument(BaseModel):
    """A document, and how much it is about the query."""

    index: int
    document: dict[str, str] | None = None
    relevance_score: float


class RankedText(BaseModel):
    """A text in TEI's form, and how much it is about the query."""

    index: int
    score: float
    text: str | None = None


class Ranking(BaseModel):
    """Response of ``POST /v1/rerank``, the best document first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: TokenCounts


class ScoreRequest(PairSettings):
    """Body of ``POST /v1/score``: one text and others, or as many as there are others."""

    text_1: Text | Texts | None = None
    text_2: Text | Texts | None = None
    queries: Text | Texts | None = None
    documents: Text | Texts | None = None

    @model_validator(mode="after")
    def _make_pairs(self) -> ScoreRequest:
        one, other = ("text_1", "text_2") if self.queries is None and self.documents is None else _NAMED
        if any(getattr(self, name) is None for name in (one, other)):
            raise FieldError(one, "text_1 and text_2, or queries and documents, are required")
        if one == "queries" and (self.text_1 is not None or self.text_2 is not None):
            raise FieldError("text_1", "text_1 and text_2 cannot be combined with queries and documents")
        if len(self.firsts) not in (1, len(self.seconds)):
            raise FieldError(one, f"{one} must be one text, or as many as {other}")
        return self

    @property
    def firsts(self) -> list[str]:
        """The texts of ``text_1`` or ``queries``."""
        return _listed(self.text_1 if self.queries is None else self.queries)

    @property
    def seconds(self) -> list[str]:
        """The texts of ``text_2`` or ``documents``."""
        return _listed(self.text_2 if self.documents is None else self.documents)


_NAMED = ("queries", "documents")


def _listed(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


T = TypeVar("T")


class Listed(BaseModel, Generic[T]):
    """Members of every response that is a list."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[T]
    usage: TokenCounts


class Score(BaseModel):
    """How much the texts of a pair are about the same."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(Listed[Score]):
    """Response of ``POST /v1/score``."""


class TextsOrConversation(Strict):
    """Texts, as for embeddings, or one conversation after which nobody speaks."""

    model: Text | None = None
    input: Inputs | None = None
    messages: Messages | None = None
    user: str | None = None

    _one_of_them = exactly_one("input", "messages")

    @property
    def prompts(self) -> list[Any]:
        """Texts, tokens of texts, or the conversation."""
        if self.messages is not None:
            return [[message.for_template() for message in self.messages]]
        return [] if self.input is None else [*items_of(self.input)]


class ClassifyRequest(TextsOrConversation):
    """Body of ``POST /v1/classify``."""

    use_activation: bool | None = None


class Classified(BaseModel):
    """Class of a text, and the probability of each class."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifiedList(Listed[Classified]):
    """Response of ``POST /v1/classify``."""


class PoolingRequest(TextsOrConversation):
    """Body of ``POST /v1/pooling``; without a `task` it is what the model is made for."""

    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None
    input_type: Text | None = None
    prompt_name: Text | None = None
    truncate: bool = False
    encoding_format: Literal["float", "base64"] | None = None


class Pooled(BaseModel):
    """The numbers of a text, or of each of its tokens; in base64, all of them, float32 and little-endian."""

    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float] | list[list[float]] | str


class PooledList(Listed[Pooled]):
    """Response of ``POST /v1/pooling``."""
