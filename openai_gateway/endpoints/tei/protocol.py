"""Bodies and responses of ``/embed``, ``/embed_all``, ``/embed_sparse`` and ``/predict``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from openai_gateway.endpoints.embeddings.protocol import MAX_TEXTS, RIGHT_TRUNCATION, Texts
from openai_gateway.protocol.fields import MAX_INT32, NotImplementedFields, Strict, Text


class TextsRequest(Strict):
    """Body of ``POST /embed_all`` and of ``POST /embed_sparse``."""

    not_implemented: ClassVar[NotImplementedFields] = RIGHT_TRUNCATION

    inputs: Text | Texts
    truncate: bool = False
    prompt_name: Text | None = None

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class EmbedRequest(TextsRequest):
    """Body of ``POST /embed``."""

    normalize: bool = True
    dimensions: int | None = Field(None, ge=1, le=MAX_INT32)


class SparseValue(BaseModel):
    """A token of the vocabulary, and how much it counts in a text."""

    index: int
    value: float


Row = Annotated[list[Text], Field(min_length=1, max_length=2, fail_fast=True)]  # a text, or a pair


class PredictRequest(Strict):
    """Body of ``POST /predict``: a text, a pair of texts, or a batch of either."""

    not_implemented: ClassVar[NotImplementedFields] = RIGHT_TRUNCATION

    inputs: Text | Row | Annotated[list[Row], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
    raw_scores: bool = False
    truncate: bool = False

    @property
    def rows(self) -> list[list[str]]:
        """Texts and pairs, each as a list."""
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        return [[row] if isinstance(row, str) else row for row in self._listed()]

    @property
    def is_one(self) -> bool:
        """Whether there is one text or pair, and no batch of them."""
        return isinstance(self.inputs, str) or isinstance(self.inputs[0], str)

    def _listed(self) -> list[list[str]]:
        assert not isinstance(self.inputs, str)
        return [self.inputs] if self.is_one else self.inputs  # type: ignore[list-item,return-value]


class Prediction(BaseModel):
    """A class, and how likely it is."""

    label: str
    score: float
