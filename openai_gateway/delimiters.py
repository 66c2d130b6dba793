"""Search for delimiters in streamed text."""

from __future__ import annotations

import re
from functools import lru_cache


def beginning_at_end(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


class Delimiters:
    """Finds delimiters, and what may become one, without a look at each of them."""

    def __init__(self, tags: tuple[str, ...]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, sorted(tags, key=len, reverse=True))) or r"(?!)")
        self._beginnings = frozenset(tag[:size] for tag in tags for size in range(1, len(tag)))
        self._first = re.compile(f"[{re.escape(''.join({tag[0] for tag in tags}))}]" if tags else r"(?!)")
        self._max_beginning = max(map(len, tags), default=1) - 1

    def find(self, text: str) -> re.Match[str] | None:
        """Return the first delimiter in `text`."""
        return self._pattern.search(text)

    def may_begin_at(self, text: str) -> int:
        """Return where what may become a delimiter begins, at the end of `text`."""
        for begin in self._first.finditer(text, max(0, len(text) - self._max_beginning)):
            if text[begin.start() :] in self._beginnings:
                return begin.start()
        return len(text)


delimiters_of = lru_cache(maxsize=64)(Delimiters)
