"""all-MiniLM-L6-v2 with its published weights against ``transformers``: 200 texts of 1 to 250 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import lmdeploy
from tools.embeddings.model import make

NEAR = 0.99999


@pytest.fixture(scope="module")
def embedder() -> Path:
    return make()


@pytest.fixture(scope="module")
def pipe(embedder: Path) -> Iterator[Any]:
    with lmdeploy.pipeline(str(embedder)) as made:
        yield made


@pytest.fixture(scope="module")
def texts(embedder: Path) -> list[str]:
    """Texts of words of the vocabulary, a token each; a text's special tokens count."""
    words = [word for word in (embedder / "vocab.txt").read_text().split() if word.isalpha() and word.isascii()]
    rng = np.random.default_rng(5)
    return [" ".join(rng.choice(words, max(0, int(length) - 2))) for length in np.linspace(1, 250, 200)]


def test_vectors_are_those_of_sentence_transformers(pipe: Any, embedder: Path, texts: list[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedder)
    model = AutoModel.from_pretrained(embedder, dtype=torch.float32).eval()
    vectors = pipe.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double()
        mean = states.mean(dim=0).numpy()
        assert vector @ mean / np.linalg.norm(mean) >= NEAR
        assert abs(np.linalg.norm(vector) - 1) < 1e-6


def test_a_text_has_the_same_bits_alone_and_in_a_batch(pipe: Any, texts: list[str]) -> None:
    together = pipe.embed(texts)
    assert (np.stack([pipe.embed(text) for text in texts[::10]]) == together[::10]).all()
    assert (pipe.embed(texts[::-1]) == together[::-1]).all()


def test_the_limit_is_the_published_one(pipe: Any) -> None:
    with pytest.raises(
        ValueError, match="text 0: a text must have at most the 256 tokens that the model reads, got 302"
    ):
        pipe.embed("word " * 300)
    assert (pipe.embed("word " * 300, truncate=True) == pipe.embed("word " * 254)).all()
