"""Nearly all tiny models have the default model's tokenizer, and most of a conversion is reading and rewriting it.

A process does so once for each tokenizer. What it remembers depends on the content of files alone, and nothing that
tests do changes a tokenizer. The tests of these functions bring tokenizers of their own.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import token_bytes
from lmdeploy import tokenizer as tokenizers
from lmdeploy.tokenizer_readers import resolved

_TOKENIZERS = 4  # some megabytes each
_SUFFIXES = {".json", ".jinja", ".model", ".tiktoken", ".txt"}
# What `transformers` looks at in config.json. The rest, sizes above all, differs between models with one tokenizer.
_OF_CONFIG = ("architectures", "auto_map", "model_type", "tokenizer_class", "transformers_version")


def remember_tokenizers(patch: pytest.MonkeyPatch) -> None:
    """Let this process remember the last few tokenizers, and what conversions made of them."""
    remember = lru_cache(maxsize=_TOKENIZERS)
    patch.setattr(resolved, "kept", remember(resolved.kept))
    patch.setattr(token_bytes, "entries_of", remember(token_bytes.entries_of))
    for name in ("read_resolved", "read_tokenizer"):
        patch.setattr(tokenizers, name, _remembered(getattr(tokenizers, name)))


def _remembered(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return a function that reads each content once, and returns copies that share the part written in Rust."""
    known: dict[bytes, Any] = {}

    def reader(directory: Path) -> Any:
        key = _digest(directory)
        if key not in known:
            known[key] = read(directory)
            if len(known) > _TOKENIZERS:
                del known[next(iter(known))]
        return copy.copy(known[key])

    return reader


def _digest(directory: Path) -> bytes:
    """Return a hash of the files that a tokenizer may be made of."""
    digest = hashlib.sha256()
    for file in sorted(directory.rglob("*")):
        if file.suffix in _SUFFIXES and not file.name.endswith(".index.json") and file.is_file():
            content = file.read_bytes()
            if file.name == "config.json":
                content = _of_tokenizers(content)
            digest.update(repr((str(file.relative_to(directory)), len(content))).encode() + content)
    return digest.digest()


def _of_tokenizers(content: bytes) -> bytes:
    """Return what counts of a config.json; all of one that is broken."""
    try:
        config = json.loads(content)
    except ValueError:
        return content
    return repr([config.get(name) for name in _OF_CONFIG]).encode() if isinstance(config, dict) else content
