"""Texts a second of all-MiniLM-L6-v2, our engine alongside torch and OpenVINO, in turns: ``make bench-embeddings``.

Lengths are a mix as of questions and paragraphs, 8 to 250 tokens. Torch runs as sentence-transformers does: texts by
length, 32 at a time, padded to the longest of these. What is not installed is left out. Vectors are compared with
torch's in float32.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tools.embeddings.model import make

Embed = Callable[[Sequence[str]], Any]  # texts to vectors [texts, numbers]

_BATCH = 32  # sentence-transformers' default
_KINDS: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}, "8 bits": {"weight_bits": 8}}


def mixed_texts(model: Path, count: int) -> list[str]:
    """Return texts of words of the vocabulary: three of five short as questions are, the others paragraphs."""
    words = [word for word in (model / "vocab.txt").read_text().split() if word.isalpha() and word.isascii()]
    rng = np.random.default_rng(11)
    lengths = np.where(rng.random(count) < 0.6, rng.integers(8, 41, count), rng.integers(41, 251, count))
    return [" ".join(rng.choice(words, int(length) - 2)) for length in lengths]


@contextmanager
def ours(model: Path, **settings: Any) -> Iterator[Embed]:
    """Our engine."""
    import lmdeploy

    config = lmdeploy.TurbomindEngineConfig(**settings)
    with lmdeploy.pipeline(str(model), backend_config=config) as pipe:
        yield pipe.embed


def _batched(tokenizer: Any, run: Callable[[Any], Any]) -> Embed:
    """Return what embeds texts by length, some at a time, and takes means over tokens that are no padding."""

    def embed(texts: Sequence[str]) -> Any:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        found = np.zeros((len(texts), 384), np.float32)
        for begin in range(0, len(order), _BATCH):
            some = order[begin : begin + _BATCH]
            given = tokenizer([texts[i] for i in some], padding=True, truncation=True, max_length=256)
            arrays = {name: np.array(given[name], np.int64) for name in ("input_ids", "attention_mask")}
            mask = arrays["attention_mask"][..., None].astype(np.float32)
            means = (run(arrays) * mask).sum(axis=1) / mask.sum(axis=1)
            found[some] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return found

    return embed


@contextmanager
def torch_peer(model: Path, dtype: str) -> Iterator[Embed]:
    """Torch through ``transformers``."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    network = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def run(arrays: Any) -> Any:
        with torch.inference_mode():
            states = network(**{name: torch.from_numpy(array) for name, array in arrays.items()}).last_hidden_state
        return states.float().numpy()

    yield _batched(AutoTokenizer.from_pretrained(model), run)


@contextmanager
def openvino_peer(model: Path, precision: str) -> Iterator[Embed]:
    """OpenVINO, of the same weights."""
    import openvino
    import torch
    from transformers import AutoModel, AutoTokenizer

    network = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    example = {name: torch.ones(2, 16, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    converted = openvino.convert_model(network, example_input=example)
    compiled = openvino.compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    yield _batched(AutoTokenizer.from_pretrained(model), lambda arrays: compiled(arrays)[0])


def measure(embed: Embed, texts: Sequence[str]) -> float:
    """Return texts a second."""
    begin = time.perf_counter()
    embed(texts)
    return len(texts) / (time.perf_counter() - begin)


def main() -> int:
    """Measure in turns, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model = make()
    texts = mixed_texts(model, args.texts)
    runners: dict[str, Any] = {f"ours, {name}": ours(model, **settings) for name, settings in _KINDS.items()}
    runners |= {f"torch, {dtype}": torch_peer(model, dtype) for dtype in ("float32", "bfloat16")}
    if importlib.util.find_spec("openvino") is not None:
        runners |= {f"OpenVINO, {kind}": openvino_peer(model, kind) for kind in ("f32", "bf16")}
    exact: Any = None
    rates: dict[str, list[float]] = {name: [] for name in runners}
    nearest: dict[str, Any] = {}
    opened = {}
    for name, runner in runners.items():
        opened[name] = runner.__enter__()
        vectors = opened[name](texts[:100])
        exact = vectors if name == "torch, float32" else exact
        nearest[name] = vectors
    for _ in range(args.rounds):
        for name, embed in opened.items():
            rates[name].append(measure(embed, texts))
    table = [
        {
            "engine": name,
            "texts_per_second": round(statistics.median(rates[name]), 1),
            "least_cosine": float(np.sum(nearest[name] * exact, axis=1).min()),
        }
        for name in runners
    ]
    for line in table:
        print(f"{line['engine']:20} {line['texts_per_second']:8} texts/s   cosine >= {line['least_cosine']:.7f}")
    if args.out:
        args.out.write_text(json.dumps(table, indent=1), encoding="utf-8")
    for runner in runners.values():
        runner.__exit__(None, None, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
