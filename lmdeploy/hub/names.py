"""Parsing of hub model names: ``owner/name``, and ``owner/name:WHICH`` for one of the GGUF files of a repository."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"(?P<repo>[a-z0-9][\w.-]*/[a-z0-9][\w.-]*)(?::(?P<which>[\w.*?-][\w.*?/-]*))?", re.ASCII | re.I)
_PREFIX = "hf.co/"  # as clients of Ollama write it
_DEFAULT = "latest"  # what they add to a name without a tag
_MAX_LEN = 96  # characters of a repository's name, as the hub allows


@dataclass(frozen=True)
class HubName:
    """A model on a hub."""

    repository: str  # ``owner/name``. It holds no ``..`` and no ``--``, so that its folder in the cache is its own
    which: str = ""  # a quantization (``Q4_K_M``), or a pattern of file names; empty: the repository's checkpoint

    @property
    def short(self) -> str:
        """The name without its owner."""
        return str(self).partition("/")[2]

    def __str__(self) -> str:
        return f"{self.repository}:{self.which}" if self.which else self.repository


def hub_name(text: str, file_pattern: str = "") -> HubName | None:
    """Return the model on a hub that a text names; None where it is no valid name.

    ``text``: ``owner/name``, ``owner/name:WHICH``, or either with ``hf.co/`` in front. ``file_pattern``: takes the
    place of WHICH.
    """
    found = _NAME.fullmatch(text.removeprefix(_PREFIX))
    if found is None or ".." in text or "--" in found["repo"] or len(found["repo"]) > _MAX_LEN:
        return None
    which = file_pattern or found["which"] or ""
    return HubName(found["repo"], "" if which == _DEFAULT else which)
