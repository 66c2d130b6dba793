"""Texts a second of all-MiniLM-L6-v2, our engine alongside its peers, in turns: ``make bench-embeddings``.

Lengths are a mix as of questions and paragraphs, 8 to 250 tokens. Peers that ``make peers`` has not installed are left
out. Vectors are compared with torch's in float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench import arguments as flags
from tools.embeddings.model import make
from tools.embeddings.peers import Embed, peers_of

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
    runners |= peers_of(model)
    rates: dict[str, list[float]] = {name: [] for name in runners}
    with ExitStack() as stack:
        opened = {name: stack.enter_context(runner) for name, runner in runners.items()}
        nearest = {name: embed(texts[:100]) for name, embed in opened.items()}
        for _ in range(args.rounds):
            for name, embed in opened.items():
                rates[name].append(measure(embed, texts))
    table = [
        {
            "engine": name,
            "texts_per_second": round(statistics.median(rates[name]), 1),
            "least_cosine": float(np.sum(nearest[name] * nearest["torch, float32"], axis=1).min()),
        }
        for name in runners
    ]
    for line in table:
        print(f"{line['engine']:20} {line['texts_per_second']:8} texts/s   cosine >= {line['least_cosine']:.7f}")
    if args.out:
        args.out.write_text(json.dumps(table, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    flags.run(main)
