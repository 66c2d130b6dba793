"""llama.cpp, which ``make peers`` installs, in processes of its own: its modules are not those of this process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tools.bench.peers.install import llama_sources
from tools.bench.peers.paths import llama_tool


def require_llama_cpp() -> None:
    """Skip the test where llama.cpp is not installed."""
    if not llama_tool("llama-bench").exists():
        pytest.skip("llama.cpp is not installed; run `make peers`")


def tokens_of_llama_cpp(file: Path, texts: Sequence[str]) -> Any:
    """Return the tokens of texts, without one in front."""
    done = _run("llama_cpp_run.py", "tokens", str(llama_sources().parent.parent), str(file), json.dumps(texts))
    return json.loads(done.strip().splitlines()[-1])


def logits_of_llama_cpp(file: Path, out: Path, prompt: Sequence[int]) -> torch.Tensor:
    """Return the logits of each token of a prompt."""
    return torch.from_numpy(_numbers("logits", file, list(prompt), out))


def vectors_of_llama_cpp(file: Path, texts: list[Any], *labels: str) -> np.ndarray[Any, Any]:
    """Return the vectors of texts, or of tokens; with a number of labels, a classifier's numbers."""
    return _numbers("vectors", file, texts, file.with_suffix(".npy"), *labels)


def convert(source: Path, file: Path, outtype: str, *options: str) -> None:
    """Write a GGUF file with llama.cpp's converter."""
    _run("llama_cpp_convert.py", str(llama_sources()), str(source), str(file), outtype, *options)


def _numbers(kind: str, file: Path, texts: list[Any], out: Path, *labels: str) -> np.ndarray[Any, Any]:
    sources = str(llama_sources().parent.parent)
    _run("llama_cpp_run.py", kind, sources, str(file), json.dumps(texts), str(out), *labels)
    found: np.ndarray[Any, Any] = np.load(out)
    return found


def _run(script: str, *arguments: str) -> str:
    environment = {"LLAMA_CPP_LIB_PATH": str(llama_tool("llama-bench").parent), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
