"""Search for delimiters in streamed text."""

from __future__ import annotations

import re
from functools import lru_cache


def beginning_at_end(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


class Marks:
    """Finds marks, and what may become one, without a look at each of them."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or r"(?!)")
        self._beginnings = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
        self._first = re.compile(f"[{re.escape(''.join({mark[0] for mark in marks}))}]" if marks else r"(?!)")
        self._max_beginning = max(map(len, marks), default=1) - 1

    def find(self, text: str) -> re.Match[str] | None:
        """Return the first mark in `text`."""
        return self._pattern.search(text)

    def may_begin_at(self, text: str) -> int:
        """Return where what may become a mark begins, at the end of `text`."""
        for begin in self._first.finditer(text, max(0, len(text) - self._max_beginning)):
            if text[begin.start() :] in self._beginnings:
                return begin.start()
        return len(text)


marks_of = lru_cache(maxsize=64)(Marks)
