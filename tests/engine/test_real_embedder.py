"""all-MiniLM-L6-v2 with its published weights against ``transformers``: 60 texts of 1 to 250 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import lmdeploy
from tools.default_embedder import make

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
    return [" ".join(rng.choice(words, max(0, int(length) - 2))) for length in np.linspace(1, 250, 60)]


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
    texts = texts[::3]
    together = pipe.embed(texts)
    assert (np.stack([pipe.embed(text) for text in texts[::4]]) == together[::4]).all()
    assert (pipe.embed(texts[::-1]) == together[::-1]).all()


def test_the_limit_is_the_published_one(pipe: Any) -> None:
    with pytest.raises(
        ValueError, match="text 0: a text must have at most the 256 tokens that the model reads, got 302"
    ):
        pipe.embed("word " * 300)
    assert (pipe.embed("word " * 300, truncate=True) == pipe.embed("word " * 254)).all()


def drawn(words: list[str], *lengths: int) -> list[list[str]]:
    """Return lists of words that have none in common, of these lengths."""
    order = np.random.default_rng(17).permutation(len(words))
    ends = np.cumsum(lengths)
    return [[words[i] for i in order[end - length : end]] for end, length in zip(ends, lengths, strict=True)]


def ranks(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.argsort(np.argsort(numbers, kind="stable"), kind="stable")


def points_of(embed: Callable[[list[str]], Any], words: list[str]) -> dict[str, float]:
    """Return the score of vectors, of 100, in three generated tasks.

    Retrieval is nDCG at 10 of the one document that a question shares words with, similarity Spearman's correlation of
    cosines with the share of words in common, classification the accuracy of the nearest mean of a topic.
    """
    rng = np.random.default_rng(23)
    topics = drawn(words, *[60] * 12)
    documents = [" ".join(rng.choice(topics[i % 12], 25)) for i in range(180)]
    questions = [" ".join(rng.choice(document.split(), 3)) for document in documents[::3]]
    ranking = (-(embed(questions) @ embed(documents).T)).argsort(axis=1, kind="stable")
    found = (ranking == 3 * np.arange(len(questions))[:, None]).argmax(axis=1)
    retrieval = np.where(found < 10, 1 / np.log2(found + 2), 0).mean()

    shared = rng.integers(0, 21, 150)
    firsts = [list(rng.choice(words, 20)) for _ in shared]
    seconds = [first[:count] + list(rng.choice(words, 20 - count)) for first, count in zip(firsts, shared, strict=True)]
    cosines = np.sum(embed([" ".join(x) for x in firsts]) * embed([" ".join(x) for x in seconds]), axis=1)
    similarity = np.corrcoef(ranks(cosines), ranks(shared))[0, 1]

    labels = rng.integers(0, 12, 240)
    texts = [" ".join([*rng.choice(topics[label], 4), *rng.choice(words, 8)]) for label in labels]
    vectors = embed(texts)
    means = np.stack([vectors[:120][labels[:120] == label].mean(axis=0) for label in range(12)])
    classification = ((vectors[120:] @ means.T).argmax(axis=1) == labels[120:]).mean()
    scores = {"retrieval": retrieval, "similarity": similarity, "classification": classification}
    return {name: 100 * float(score) for name, score in scores.items()}


@pytest.mark.thorough  # equal vectors have equal points
def test_tasks_have_the_points_of_sentence_transformers(pipe: Any, embedder: Path) -> None:
    words = [word for word in (embedder / "vocab.txt").read_text().split() if word.isalpha() and word.isascii()]
    tokenizer = AutoTokenizer.from_pretrained(embedder)
    model = AutoModel.from_pretrained(embedder, dtype=torch.float32).eval()

    def embed(texts: list[str]) -> Any:
        given = tokenizer(texts, return_tensors="pt", padding=True)
        with torch.no_grad():
            states = model(**given).last_hidden_state
        mask = given["attention_mask"][..., None]
        means = (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(means).numpy()

    native, reference = points_of(pipe.embed, words), points_of(embed, words)
    assert native == pytest.approx(reference, abs=0.1)
    assert all(20 < points < 99.5 for points in reference.values())  # neither hopeless nor too easy to differ
