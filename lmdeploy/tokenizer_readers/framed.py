"""Tokenization of texts and pairs for embedding and scoring models: with special tokens around and between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Frame:
    """The special tokens around a text, or around and between the texts of a pair."""

    # Token ids; a single text has none between
    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    has_types: bool = False  # whether the second text has a token type of its own

    def single(self, ids: Sequence[int], max_len: int | None = None) -> list[int]:
        """Return a text's tokens with those around it, at most `max_len` in all: the end of the text is left out."""
        kept = len(ids) if max_len is None else max(0, max_len - len(self.before) - len(self.after))
        return [*self.before, *ids[:kept], *self.after]

    def pair(
        self, first: Sequence[int], second: Sequence[int], max_len: int | None = None
    ) -> tuple[list[int], int | None]:
        """Return a pair's tokens, and where the second text's token type begins, None where there is one type.

        Of the longer text the end is left out until there are at most `max_len` tokens.
        """
        excess = 0
        if max_len is not None:
            around = len(self.before) + len(self.between) + len(self.after)
            excess = max(0, len(first) + len(second) + around - max_len)
        kept = [len(first), len(second)]
        longer = 0 if kept[0] >= kept[1] else 1
        cut = min(excess, abs(kept[0] - kept[1]))
        kept[longer] -= cut
        rest = excess - cut
        kept[longer] -= (rest + 1) // 2
        kept[1 - longer] -= rest // 2
        begin = len(self.before) + kept[0] + len(self.between)
        ids = [*self.before, *first[: kept[0]], *self.between, *second[: kept[1]], *self.after]
        return ids, begin if self.has_types else None

    def bare(self, ids: Sequence[int]) -> list[int]:
        """Return a text's tokens without those around it."""
        return list(ids[len(self.before) : len(ids) - len(self.after)])


NO_FRAME = Frame()


def read_frame(kept: Mapping[str, Any]) -> Frame:
    """Return a frame of its fields as JSON has them."""
    before, between, after = (tuple(kept[name]) for name in ("before", "between", "after"))
    return Frame(before, between, after, kept["has_types"])


def frame_of(tokenizer: Any, is_pair: bool) -> Frame:
    """Return the special tokens around a text or a pair.

    ``tokenizer``: one of ``transformers``, or a `lmdeploy.tokenizer_readers.resolved.ResolvedTokenizer`.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # one of `transformers` in Python
        return Frame()
    encoding = backend.encode("a", "b") if is_pair else backend.encode("a")
    ids, sequences, types = encoding.ids, encoding.sequence_ids, encoding.type_ids
    first = [i for i, sequence in enumerate(sequences) if sequence == 0]
    second = [i for i, sequence in enumerate(sequences) if sequence == 1] or first[-1:]
    return Frame(
        tuple(ids[: first[0]]),
        tuple(ids[first[-1] + 1 : second[0]]),
        tuple(ids[second[-1] + 1 :]),
        is_pair and types[second[0]] == 1,
    )
