"""Runs the engine's steps on a model: from the channel's numbers to tensors, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lmdeploy import _turbomind
from lmdeploy.pytorch.adapters import AdapterTable
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.device_sampler import KNOWN_FIELDS, Choices, Chosen, DeviceSampler, agrees_with_cpu
from lmdeploy.pytorch.graphs import DecodingGraphs, cuda_capture
from lmdeploy.pytorch.models.hf_config import read_hf_config
from lmdeploy.pytorch.models.patch import model_class_for
from lmdeploy.pytorch.paged import LayerShape, StateShape
from lmdeploy.pytorch.ranks import join
from lmdeploy.pytorch.start.warm_up import StepSizes, is_skipped, warm_up
from lmdeploy.pytorch.step_context import StepContext
from lmdeploy.pytorch.step_devices import (
    ADAPTER,
    COUNT,
    FIRST_TOKEN,
    LOGITS_FROM,
    POSITION,
    PROMPT_LEN,
    Ints,
    StepDevice,
    memory_for,
    step_device,
)
from lmdeploy.pytorch.uploads import Uploads

logger = logging.getLogger(__name__)

_AREAS = 2  # of the channel; steps that may be under way at once


@dataclass(frozen=True)
class WorkerArguments:
    """How a worker runs its rank of a model."""

    checkpoint: Path
    dtype: str = "auto"
    device: str = "auto"
    rank: int = 0
    ranks: int = 1
    rendezvous: str = ""
    threads: int = 1
    quant_policy: int = 0
    custom_module_map: str = ""
    eager_mode: bool = False


class SteppingModel(Protocol):
    """A model that runs steps."""

    dtype: torch.dtype  # type of its weights
    # KV shape of each layer, and its window (0: all the way)
    shapes: dict[int, LayerShape]
    windows: dict[int, int]
    states: dict[int, StateShape]  # what each recurrent layer keeps of a sequence
    # The linear layers that adapters may add to (`lmdeploy.pytorch.adapters`), and the adapters
    layers: dict[str, tuple[int, int]]
    adapters: AdapterTable

    def forward(self, step: StepContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[logits, vocab]`` and hidden states ``[logits, hidden]``, float32."""

    def can_capture(self, step: StepContext) -> bool:
        """Return whether a step of decoding may run as a CUDA graph."""


class StepRunner:
    """A model and its cache.

    Raises `ValueError` if it cannot be run, with the reason. ``args``: how to run it.
    """

    def __init__(self, args: WorkerArguments, channel: Any) -> None:
        model_class = model_class_for(read_hf_config(args.checkpoint), args.custom_module_map)
        self._channel = channel  # where steps come from and go to
        self._areas = [channel.area(index) for index in range(_AREAS)]
        self._device = step_device(args.device, args.rank, args.ranks, kernels(args.threads))
        torch.set_num_threads(args.threads)
        self._ranks = join(args.rank, args.ranks, args.rendezvous, self._device.device)
        with memory_for("the model", "use a quantized checkpoint, several GPUs (tp) or a smaller model"):
            self._model: SteppingModel = _model_of(args, self._device, self._ranks, model_class is not None)
        self._cache = self._device.cache_of(
            self._model.shapes, args.quant_policy, self._model.dtype, self._model.states
        )
        self._forward = self._model.forward
        uses_graphs = not args.eager_mode and _turbomind.requested_kernels("pytorch", "graphs") != "off"
        self._captures = uses_graphs and self._device.device.type == "cuda"
        self._is_first = args.rank == 0
        self._uploads = Uploads(self._device.device)
        self._sampler = DeviceSampler(channel.logits.shape[1], self._device.device)
        self._chosen = torch.empty(0, dtype=torch.int64, device=self._device.device)  # by the last step
        self._block_count = self._block_len = 0
        torch.set_num_threads(1)  # what is left to PyTorch is small, and the kernels' threads need the cores

    def facts(self) -> dict[str, Any]:
        """Return the model's description for the engine."""
        windows, states = self._model.windows.values(), list(self._model.states.values())
        return {
            "token_bytes": -(-self._cache.block_bytes(16) // 16),
            "free_memory": self._device.free_memory(),
            "window": max(windows, default=0) if all(windows) else 0,
            "state_layers": len(states),
            "state_bytes": states[0].state_bytes if states else 0,
            "layers": self._model.layers,
            "sampling": list(KNOWN_FIELDS) if _samples_on_device(self._device.device) else [],
        }

    def set_adapter(self, slot: int, directory: str) -> None:
        """Read an adapter, which steps then name by a number."""
        self._model.adapters.load(slot, directory)

    def drop_adapter(self, slot: int) -> None:
        """Forget an adapter."""
        self._model.adapters.drop(slot)

    def allocate(self, block_count: int, block_len: int, host_block_count: int = 0, page_bytes: int = 0) -> None:
        """Take memory for the cache."""
        self._block_count, self._block_len = block_count, block_len
        with memory_for("the cache", "lower cache_max_entry_count"):
            self._cache.allocate(block_count, block_len, host_block_count, page_bytes)

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def prepare(self, sequences: int, sequence_blocks: int) -> None:
        """Get ready for steps over the cache that there is now; on a GPU, run some of every kind.

        ``sequences``, ``sequence_blocks``: sequences of a step, and blocks of a sequence, at most.
        """
        if self._captures:  # again for each cache: graphs read the one they were captured with
            self._forward = DecodingGraphs(self._model, cuda_capture(), sequence_blocks).forward
        if self._device.kernels is None and not is_skipped():
            tokens = len(self._areas[0].tokens)
            sizes = StepSizes(tokens, sequences, sequence_blocks, self._block_count, self._block_len)
            warm_up(self._forward, sizes, self._cache, self._device.device)

    def move_blocks(self, count: int, area: int) -> None:
        """Do what the channel has: this many pairs of blocks, whose content goes from the first to the second."""
        self._cache.move(self._areas[area].blocks[: 2 * count].reshape(count, 2))

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, order: Any) -> Callable[[], None] | None:
        """Run a step, and leave what it brings in the channel.

        Returns what waits for the device and leaves it there; it may be called by another thread, while the next step
        is launched. None: it is there.
        """
        area = self._areas[order.area]
        spans = area.spans[: order.spans]
        choices = area.choices[: order.choices]
        self._model.adapters.begin_step(np.repeat(spans[:, ADAPTER], spans[:, COUNT]))
        context = self._context(order, area, spans, choices)
        staged = self._sampler.stage(choices, area.lists, self._uploads) if self._is_first and len(choices) else None
        # Which rows adapters add to, and what images bring, differs from step to step.
        is_fixed = context.input_embeddings is None and context.grid_positions is None
        forward = self._forward if is_fixed and not self._model.adapters.is_used else self._model.forward
        logits, hidden = forward(context)
        if self._is_first and order.logit_rows:
            torch.from_numpy(self._channel.logits[: order.logit_rows]).copy_(logits[order.choices :])
            torch.from_numpy(self._channel.hidden[: order.logit_rows]).copy_(hidden[order.choices :])
        if not order.choices:
            return None
        if staged is None:
            self._chosen = self._ranks.from_first(torch.empty_like(logits[: order.choices, 0], dtype=torch.int64))
            return None
        chosen = self._sampler.choose(logits[: order.choices], staged)
        self._chosen = self._ranks.from_first(chosen.tokens)
        return _deliver(chosen, staged, area)

    def _context(self, order: Any, area: Any, spans: Ints, choices: Ints) -> StepContext:
        first_tokens, counts, positions = spans[:, FIRST_TOKEN], spans[:, COUNT], spans[:, POSITION]
        token_indices = np.arange(order.rows)
        position_ids = token_indices + np.repeat(positions - first_tokens, counts)
        within = token_indices - np.repeat(first_tokens, counts)
        logits_rows = np.flatnonzero(within >= np.repeat(spans[:, LOGITS_FROM], counts))
        tokens = area.tokens[: order.rows]
        in_flight = np.flatnonzero(tokens < 0)  # the last step's, which may not have come to the host
        arrays = {
            "input_ids": tokens[None].clip(0), "position_ids": position_ids[None], "q_start_loc": first_tokens,
            "q_seqlens": counts, "kv_seqlens": positions + counts,
            "block_offsets": self._device.block_offsets(spans, area.blocks, self._block_len),
            "logits_indices": np.concatenate([choices["row"], logits_rows]), "prompt_lens": spans[:, PROMPT_LEN],
            "in_flight": in_flight, "chosen": -1 - tokens[in_flight],
        }  # fmt: skip
        sent = self._uploads.send({name: np.ascontiguousarray(array, np.int64) for name, array in arrays.items()})
        row_of, choice_of = sent.pop("in_flight"), sent.pop("chosen")
        context = StepContext(
            **sent,
            kv_caches=self._cache,
            is_decoding=order.rows == order.spans,
            max_q_len=int(counts.max(initial=0)),
        )
        if len(in_flight):
            # -1 ends the request when it comes to the host; until then any token will do.
            context.input_ids[0, row_of] = self._chosen[choice_of].clamp_min(0)
        if order.embedded:
            images = torch.from_numpy(area.embeddings[: order.embedded]).to(self._device.device, copy=True)
            parts = images.unflatten(1, (-1, self._channel.hidden.shape[1]))
            context.input_embeddings = parts[:, 0]
            context.deeper_embeddings = parts[:, 1:] if parts.shape[1] > 1 else None
            is_embedded = np.zeros((1, order.rows), bool)
            is_embedded[0, area.embedded_tokens[: order.embedded]] = True
            context.input_embedding_indexing = torch.from_numpy(is_embedded).to(self._device.device)
            context.input_ids[context.input_embedding_indexing] = 0  # tokens of images may be after the vocabulary
        if order.has_grid:
            grid = area.grid_positions[: order.rows].T.astype(np.int64)
            context.grid_positions = torch.from_numpy(grid).to(self._device.device)
        return context


def _samples_on_device(device: torch.device) -> bool:
    """Return whether tokens are chosen in PyTorch: as it is asked, else on a GPU that does what the CPU does."""
    override = _turbomind.requested_kernels("pytorch", "sampling")
    if override is not None or device.type != "cuda":
        return override == "torch"
    try:
        problem = None if agrees_with_cpu(device) else "it chooses other tokens than on the CPU"
    except RuntimeError as error:  # of CUDA: no memory, no kernel for this GPU
        problem = " ".join(str(error).split())
    if problem is not None:
        logger.warning(
            "tokens are chosen on the CPU, not by PyTorch %s (CUDA %s) on the GPU: %s",
            torch.__version__, torch.version.cuda, problem,
        )  # fmt: skip
    return problem is None


def _deliver(chosen: Chosen, choices: Choices, area: Any) -> Callable[[], None] | None:
    """Return a function that writes the sampled tokens to the channel, once the device has them."""
    rows = choices.reported_rows
    if not chosen.tokens.is_cuda:
        _leave(chosen.tensors(), rows, area)
        return None
    there = [
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        for tensor in chosen.tensors()
    ]
    are_there = torch.cuda.Event()
    are_there.record()

    def deliver() -> None:
        are_there.synchronize()
        _leave(there, rows, area)

    return deliver


def _leave(tensors: list[torch.Tensor], rows: Ints, area: Any) -> None:
    tokens, logprobs, top_tokens, top_logprobs = (tensor.numpy() for tensor in tensors)
    area.chosen[: len(tokens)] = tokens
    if len(rows):
        area.logprobs[rows] = logprobs
        area.top_tokens[rows, : top_tokens.shape[1]] = top_tokens
        area.top_logprobs[rows, : top_tokens.shape[1]] = top_logprobs


def _model_of(args: WorkerArguments, on: StepDevice, ranks: Any, is_patched: bool) -> SteppingModel:
    """Return the model on a class of the user's, on one of ours, or as ``transformers`` has it."""
    if is_patched:
        from lmdeploy.pytorch.models.patched_model import PatchedModel

        return PatchedModel(args.checkpoint, args.dtype, on.kernels, ranks, args.custom_module_map, on.device)
    from lmdeploy.pytorch.transformers_model import TransformersModel

    return TransformersModel(args.checkpoint, args.dtype, on.kernels, ranks, on.device)
