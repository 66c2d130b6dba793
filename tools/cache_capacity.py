"""How many tokens the cache holds where layers keep what they see alone, alongside one group for all layers.

An engine is given fewer and fewer blocks, each of all layers, until a sequence of the wanted length no longer fits.
``python -m tools.cache_capacity`` prints the table that is also part of ``make bench``.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.turbomind.engine import Engine
from tools.bench.random_model import write
from tools.bench.report import table

_BLOCK, _STEP = 64, 128  # tokens


@dataclass(frozen=True)
class Layout:
    """Layers of a model, of which only what they remember matters.

    Attributes
    ----------
    shape
        Of ``random_model.SHAPES``: as many layers, windows alike, all else tiny.
    tokens
        Of the sequence.
    target
        Least ratio promised.
    """

    shape: str
    tokens: int
    target: float


LAYOUTS = {
    "layers of Gemma 3 270M, 8,192 tokens": Layout("gemma-3-270m-layers", 8192, 4.0),
    "layers of GPT-OSS 20B, 32,768 tokens": Layout("gpt-oss-20b-layers", 32768, 1.9),
}


def gain(layout: Layout, folder: Path) -> float:
    """Return how many times as many tokens fit as where all layers keep everything, in the same memory."""
    directory = write(layout.shape, folder / layout.shape)
    whole = layout.tokens // _BLOCK
    low, high = 1, whole  # blocks that do not suffice, and such that do
    while high - low > 1:
        middle = (low + high) // 2
        config = TurbomindEngineConfig(
            dtype="float32",
            session_len=layout.tokens,
            max_batch_size=1,
            num_tokens_per_iter=_STEP,
            cache_block_seq_len=_BLOCK,
            cache_max_entry_count=middle,
        )
        engine = Engine(str(directory), config)
        low, high = (low, middle) if engine.session_len >= layout.tokens else (middle, high)
        engine.close()
    return whole / high


def rows() -> list[list[str]]:
    """Return a row of the table for each layout: what, how much, what is promised, and whether it is kept."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, layout in LAYOUTS.items():
            measured = gain(layout, Path(folder))
            state = "met" if measured >= layout.target else "missed"
            found.append([name, f"{measured:.2f}", f">= {layout.target:.2f}", state])
    return found


def print_table() -> None:
    """Print it."""
    print(table(("tokens in the same cache, ratio to one group for all layers", "measured", "target", ""), rows()))


if __name__ == "__main__":
    print_table()
