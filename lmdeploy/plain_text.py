"""Text of callers that must stay text: what in it would become a special token is cut in two before it is tokenized."""

import re
from collections.abc import Iterable
from typing import Any

CUT = "\U0010fffe"
"""Where a text is cut: no character, so that no text has a reason to hold it; one that does is cut there."""

# Members of messages and tools that say how to read the others, and those that are no text.
_NOT_CUT = frozenset({"role", "type", "image_url", "image_data"})


class PlainText:
    """Keeps texts from becoming tokens of their own.

    Parameters
    ----------
    special
        Texts of the tokenizer's added tokens, such as ``<|im_end|>``.
    """

    def __init__(self, special: Iterable[str]) -> None:
        texts = sorted({text for text in special if len(text) > 1}, key=len, reverse=True)
        # Looks ahead only, so that tokens which overlap are all found.
        self._special = re.compile(f"(?={'|'.join(map(re.escape, texts))})") if texts else None

    def cut(self, value: Any) -> Any:
        """Return a text, or messages or tools with all their texts, cut behind the first character of each token."""
        if isinstance(value, str):
            return self._cut(value)
        if isinstance(value, list):
            return [self.cut(item) for item in value]
        if isinstance(value, dict):
            return {self.cut(key): item if key in _NOT_CUT else self.cut(item) for key, item in value.items()}
        return value

    def _cut(self, text: str) -> str:
        if self._special is None:
            return text
        pieces, begin = [], 0
        for match in self._special.finditer(text):
            pieces.append(text[begin : match.start() + 1])
            begin = match.start() + 1
        return CUT.join([*pieces, text[begin:]])


def pieces_of(text: str) -> list[str]:
    """Return what to tokenize one by one."""
    return text.split(CUT)
