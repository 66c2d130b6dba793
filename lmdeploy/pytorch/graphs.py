"""Decoding steps as captured CUDA graphs: one launch in place of hundreds.

A graph is of one size: this many tokens, one width of block tables. Steps are padded to the next size; rows that fill
up are of no sequence, write nothing to the cache, and are thrown away. All graphs share one pool of memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from lmdeploy.pytorch.step_context import StepContext

logger = logging.getLogger(__name__)

MAX_TOKENS = 256
_MIN_BLOCKS = 8

Outputs = tuple[torch.Tensor, torch.Tensor]


class Captured(Protocol):
    """Captured graph of a function without arguments."""

    outputs: Outputs  # what it returned; each replay puts its results there

    def replay(self) -> None:
        """Do again what the function did."""


class CapturableModel(Protocol):
    """A model whose steps of decoding may be captured."""

    def forward(self, step: StepContext) -> Outputs:
        """Run a step."""

    def can_capture(self, step: StepContext) -> bool:
        """Return whether a step of decoding may run as a CUDA graph."""


class CudaGraph:
    """A captured function.

    ``run``: the function. It is run once before: kernels are compiled, and libraries take their memory. ``pool``: where
    its memory is, shared with other graphs, which do not run at the same time.
    """

    def __init__(self, run: Callable[[], Outputs], pool: tuple[int, int]) -> None:
        alongside = torch.cuda.Stream()
        alongside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(alongside):
            run()
        torch.cuda.current_stream().wait_stream(alongside)
        self._graph = torch.cuda.CUDAGraph()
        # Another thread may wait for the last step meanwhile.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = run()

    def replay(self) -> None:
        """Do it again."""
        self._graph.replay()


def cuda_capture() -> Callable[[Callable[[], Outputs]], Captured]:
    """Return a function that captures graphs on this process's GPU."""
    pool = torch.cuda.graph_pool_handle()
    return lambda run: CudaGraph(run, pool)


class DecodingGraphs:
    """Runs a model's steps, those that decode as graphs."""

    def __init__(
        self, model: CapturableModel, capture: Callable[[Callable[[], Outputs]], Captured], blocks: int = _MIN_BLOCKS
    ) -> None:
        self._model = model  # runs steps: logits and hidden states of the tokens that are wanted
        self._capture = capture  # captures a function
        # As wide block tables get, where that is known: then graphs differ in their tokens alone
        self._min_blocks = blocks
        self._graphs: dict[tuple[int, int], _Graph | None] = {}  # None: the model does not want it
        self._has_failed = False

    def forward(self, step: StepContext) -> Outputs:
        """Return the output of the model's ``forward``."""
        spans, blocks = step.block_offsets.shape
        if not step.is_decoding or spans > MAX_TOKENS or self._has_failed:
            return self._model.forward(step)
        size = padded_tokens(spans), self._min_blocks if blocks <= self._min_blocks else blocks_for(blocks)
        if size not in self._graphs:
            self._graphs[size] = self._make(size, step)
        graph = self._graphs[size]
        return self._model.forward(step) if graph is None else graph.run(step)

    def _make(self, size: tuple[int, int], step: StepContext) -> _Graph | None:
        graph = _Graph(*size, step)
        try:
            if not self._model.can_capture(step):
                return None
            graph.capture(self._model.forward, self._capture)
        except Exception as error:  # of any library that the model's code uses
            logger.warning("decoding runs without captured graphs: %s: %s", type(error).__name__, error)
            self._has_failed = True
            return None
        return graph


def padded_tokens(tokens: int) -> int:
    """Return the tokens of the graph that takes this many: powers of two up to 8, then multiples of 8."""
    return 1 << (tokens - 1).bit_length() if tokens <= 8 else -(-tokens // 8) * 8


def blocks_for(blocks: int) -> int:
    """Return the width of the block tables of a graph that takes tables so wide: powers of two."""
    return max(_MIN_BLOCKS, 1 << (blocks - 1).bit_length())


class _Graph:
    """A graph of one size, and the tensors that it reads."""

    def __init__(self, tokens: int, blocks: int, like: StepContext) -> None:
        device = like.input_ids.device
        indices = torch.arange(tokens, device=device)
        self._cache = like.kv_caches
        self._indices = indices
        self._tokens = torch.zeros(1, tokens, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._tokens)
        self._counts = torch.zeros_like(indices)  # 0: padding
        self._contexts = torch.ones_like(indices)
        self._blocks = torch.zeros(tokens, blocks, dtype=torch.int64, device=device)
        self._fill(like)
        self._captured: Captured

    def capture(
        self, forward: Callable[[StepContext], Outputs], capture: Callable[[Callable[[], Outputs]], Captured]
    ) -> None:
        self._captured = capture(lambda: forward(self._step()))

    def run(self, step: StepContext) -> Outputs:
        self._fill(step)
        self._captured.replay()
        logits, hidden = self._captured.outputs
        return logits[step.logits_indices], hidden[step.logits_indices]

    def _step(self) -> StepContext:
        """Return the step, a new one each time: layers keep in it what they find out."""
        return StepContext(
            input_ids=self._tokens, position_ids=self._positions, q_start_loc=self._indices, q_seqlens=self._counts,
            kv_seqlens=self._contexts, block_offsets=self._blocks, kv_caches=self._cache, is_decoding=True,
            logits_indices=self._indices,
        )  # fmt: skip

    def _fill(self, step: StepContext) -> None:
        spans, blocks = step.block_offsets.shape
        self._tokens[:, :spans] = step.input_ids
        self._positions[:, :spans] = step.position_ids
        self._counts[:spans], self._counts[spans:] = 1, 0
        self._contexts[:spans], self._contexts[spans:] = step.kv_seqlens, 1
        self._blocks[:spans, :blocks] = step.block_offsets
