"""Runs the engine's steps on a model: from the channel's numbers to tensors, and back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lmdeploy.pytorch.adapters import AdapterTable
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.graphs import DecodingGraphs, cuda_capture
from lmdeploy.pytorch.models.hf_config import read_hf_config
from lmdeploy.pytorch.models.patch import model_class_for
from lmdeploy.pytorch.paged import LayerShape, StateShape
from lmdeploy.pytorch.ranks import join
from lmdeploy.pytorch.step_context import StepContext
from lmdeploy.pytorch.step_devices import (
    ADAPTER,
    COUNT,
    FIRST_ROW,
    POSITION,
    PROMPT_LEN,
    WANTED_FROM,
    Ints,
    StepDevice,
    step_device,
)


@dataclass(frozen=True)
class WorkerArguments:
    """How a worker runs its rank of a model."""

    checkpoint: Path
    dtype: str = "auto"
    device: str = "auto"
    rank: int = 0
    ranks: int = 1
    meeting_place: str = ""
    threads: int = 1
    quant_policy: int = 0
    custom_module_map: str = ""
    eager_mode: bool = False


class SteppingModel(Protocol):
    """A model that runs steps.

    Attributes
    ----------
    dtype
        Type of its weights.
    shapes, windows
        What each layer keeps of a token, and how far back it looks (0: all the way).
    states
        What each recurrent layer keeps of a sequence.
    layers, adapters
        The linear layers that adapters may add to (`lmdeploy.pytorch.adapters`), and the adapters.
    """

    dtype: torch.dtype
    shapes: dict[int, LayerShape]
    windows: dict[int, int]
    states: dict[int, StateShape]
    layers: dict[str, tuple[int, int]]
    adapters: AdapterTable

    def forward(self, step: StepContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[wanted, vocab]`` and hidden states ``[wanted, hidden]``, float32."""

    def can_capture(self, step: StepContext) -> bool:
        """Return whether a step of decoding may run as a CUDA graph."""


class StepRunner:
    """A model and its cache.

    Parameters
    ----------
    args
        How to run it.
    channel
        Where steps come from and go to.

    Raises
    ------
    ValueError
        If it cannot be run, with the reason.
    """

    def __init__(self, args: WorkerArguments, channel: Any) -> None:
        own = model_class_for(read_hf_config(args.checkpoint), args.custom_module_map)
        self._channel = channel
        self._device = step_device(args.device, args.rank, args.ranks, kernels(args.threads))
        torch.set_num_threads(args.threads)
        ranks = join(args.rank, args.ranks, args.meeting_place, self._device.device)
        self._model: SteppingModel = _model_of(args, self._device, ranks, own is not None)
        self._cache = self._device.cache_of(
            self._model.shapes, args.quant_policy, self._model.dtype, self._model.states
        )
        self._forward = self._model.forward
        if self._device.device.type == "cuda" and not args.eager_mode:
            self._forward = DecodingGraphs(self._model, cuda_capture()).forward
        self._is_first = args.rank == 0
        self._block_len = 0
        torch.set_num_threads(1)  # what is left to PyTorch is small, and the kernels' threads need the cores

    def facts(self) -> dict[str, Any]:
        """Return what the engine needs to know of the model."""
        windows, states = self._model.windows.values(), list(self._model.states.values())
        return {
            "token_bytes": -(-self._cache.block_bytes(16) // 16),
            "free_memory": self._device.free_memory(),
            "window": max(windows, default=0) if all(windows) else 0,
            "state_layers": len(states),
            "state_bytes": states[0].state_bytes if states else 0,
            "layers": self._model.layers,
        }

    def place_adapter(self, slot: int, directory: str) -> None:
        """Read an adapter, which steps then name by a number."""
        self._model.adapters.place(slot, directory)

    def drop_adapter(self, slot: int) -> None:
        """Forget an adapter."""
        self._model.adapters.drop(slot)

    def allocate(self, block_count: int, block_len: int, host_block_count: int = 0, page_bytes: int = 0) -> None:
        """Take memory for the cache."""
        self._block_len = block_len
        self._cache.allocate(block_count, block_len, host_block_count, page_bytes)

    def move_blocks(self, count: int) -> None:
        """Do what the channel has: this many pairs of blocks, whose content goes from the first to the second."""
        self._cache.move(self._channel.blocks[: 2 * count].reshape(count, 2))

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, order: Any) -> None:
        """Run a step, and leave what it brings in the channel."""
        spans = self._channel.spans[: order.spans]
        self._model.adapters.begin_step(np.repeat(spans[:, ADAPTER], spans[:, COUNT]))
        context = self._context(order, spans)
        # Which rows adapters add to, and what images bring, differs from step to step.
        is_fixed = context.input_embeddings is None and context.grid_positions is None
        forward = self._forward if is_fixed and not self._model.adapters.is_used else self._model.forward
        logits, hidden = forward(context)
        if self._is_first and order.wanted:
            torch.from_numpy(self._channel.logits[: order.wanted]).copy_(logits)
            torch.from_numpy(self._channel.hidden[: order.wanted]).copy_(hidden)

    def _context(self, order: Any, spans: Ints) -> StepContext:
        first_rows, counts, positions = spans[:, FIRST_ROW], spans[:, COUNT], spans[:, POSITION]
        rows = np.arange(order.rows)
        position_ids = rows + np.repeat(positions - first_rows, counts)
        within = rows - np.repeat(first_rows, counts)
        wanted = np.flatnonzero(within >= np.repeat(spans[:, WANTED_FROM], counts))
        context = StepContext(
            input_ids=self._tensor(self._channel.tokens[None, : order.rows]),
            position_ids=self._tensor(position_ids[None]),
            q_start_loc=self._tensor(first_rows),
            q_seqlens=self._tensor(counts),
            kv_seqlens=self._tensor(positions + counts),
            block_offsets=self._device.block_offsets(spans, self._channel.blocks, self._block_len),
            kv_caches=self._cache,
            is_decoding=order.rows == order.spans,
            wanted=self._tensor(wanted),
            prompt_lens=self._tensor(spans[:, PROMPT_LEN]),
        )
        if order.embedded:
            context.input_embeddings = torch.from_numpy(self._channel.embeddings[: order.embedded]).to(
                self._device.device, copy=True
            )
            is_embedded = np.zeros((1, order.rows), bool)
            is_embedded[0, self._channel.embedded_rows[: order.embedded]] = True
            context.input_embedding_indexing = torch.from_numpy(is_embedded).to(self._device.device)
            context.input_ids[context.input_embedding_indexing] = 0  # tokens of images may be after the vocabulary
        if order.has_grid:
            context.grid_positions = self._tensor(self._channel.grid_positions[: order.rows].T)
        return context

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return a copy as int64, where the model runs."""
        return torch.from_numpy(array.astype(np.int64)).to(self._device.device)


def _model_of(args: WorkerArguments, on: StepDevice, ranks: Any, has_own_class: bool) -> SteppingModel:
    """Return the model on a class of the user's, on one of ours, or as ``transformers`` has it."""
    if has_own_class:
        from lmdeploy.pytorch.models.patched_model import PatchedModel

        return PatchedModel(args.checkpoint, args.dtype, on.kernels, ranks, args.custom_module_map, on.device)
    from lmdeploy.pytorch.transformers_model import TransformersModel

    return TransformersModel(args.checkpoint, args.dtype, on.kernels, ranks, on.device)
