"""The default model's tokenizer, as `transformers` has it, read once a process: that takes a third of a second."""

import copy
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import tokenizer as tokenizers
from lmdeploy.paths import default_model_dir


def remember_tokenizers(patch: pytest.MonkeyPatch) -> None:
    """Let this process remember it; who reads it gets a copy that shares the part written in Rust."""
    read = tokenizers.read_tokenizer
    known: dict[Path, Any] = {}

    def reader(directory: Path) -> Any:
        if directory.resolve() != default_model_dir().resolve():
            return read(directory)
        if directory not in known:
            known[directory] = read(directory)
        return copy.copy(known[directory])

    patch.setattr(tokenizers, "read_tokenizer", reader)
