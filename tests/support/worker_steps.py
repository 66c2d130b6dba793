"""Steps of the PyTorch engine in this process: the numbers that the engine would send, without an engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmdeploy import _turbomind
from lmdeploy.pytorch import step_runner
from lmdeploy.pytorch.step_runner import StepRunner, WorkerArguments

BLOCK_LEN = 16


@dataclass
class Order:
    """A step's sizes, as `lmdeploy._turbomind.Order` has them."""

    rows: int
    spans: int
    logit_rows: int
    embedded: int = 0
    has_grid: int = 0
    choices: int = 0
    area: int = 0


@dataclass
class Part:
    """Tokens of a sequence in a step, those at positions ``begin``, ``begin + 1``, ..., its adapter's number,
    whether the logits of all rows are requested or the last one's, and its prompt's length; 0: up to these tokens."""

    sequence: int
    begin: int
    tokens: list[int]
    adapter: int = 0
    needs_all_logits: bool = True
    prompt: int = 0


class StepDriver:
    """A model behind the step runner, with a cache of its own and the memory of a channel.

    ``by_transformers``: whether the modelling code of `transformers` runs it, also where we have a class of our own.
    """

    def __init__(
        self, checkpoint: Path, vocab_size: int, hidden_size: int, by_transformers: bool = False, **options: Any
    ) -> None:
        self.tokens = np.zeros(256, np.int32)
        self.spans = np.zeros((64, 8), np.int32)
        self.blocks = np.zeros(1024, np.int32)
        self.logits = np.zeros((256, vocab_size), np.float32)
        self.hidden = np.zeros((256, hidden_size), np.float32)
        self.choices = np.zeros(64, _turbomind.choice_dtype)
        self.lists = np.zeros(4096, np.int32)
        self.chosen = np.zeros(64, np.int32)
        with pytest.MonkeyPatch.context() as patch:
            if by_transformers:
                patch.setattr(step_runner, "model_class_for", lambda *_: None)
            self.runner = StepRunner(WorkerArguments(checkpoint, threads=2, **options), self)
        self.runner.allocate(256, BLOCK_LEN)
        self._tables: dict[int, list[int]] = {}
        # Not in order, so that a mistake with block numbers shows.
        self._free = [int(block) for block in np.random.default_rng(5).permutation(256)]

    def area(self, index: int) -> "StepDriver":
        """Return the driver of an area: both areas are the same here, since a step is done before the next."""
        assert index in (0, 1)
        return self

    def step(self, *parts: Part) -> list[np.ndarray]:
        """Run a step and return the logits that each part wants."""
        row = used = 0
        logit_rows: list[int] = []
        for index, part in enumerate(parts):
            table = self._tables.setdefault(part.sequence, [])
            end = part.begin + len(part.tokens)
            while len(table) * BLOCK_LEN < end:
                table.append(self._free.pop())
            count = len(part.tokens)
            self.tokens[row : row + count] = part.tokens
            logit_rows.append(count if part.needs_all_logits else 1)
            self.spans[index] = [
                row, count, part.begin, part.prompt or end, used, len(table), count - logit_rows[-1], part.adapter
            ]  # fmt: skip
            self.blocks[used : used + len(table)] = table
            row, used = row + count, used + len(table)
        self.runner.step(Order(row, len(parts), sum(logit_rows)))
        return [
            self.logits[end - count : end].copy() for end, count in zip(np.cumsum(logit_rows), logit_rows, strict=True)
        ]
