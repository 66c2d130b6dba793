"""The paged cache of a model on a GPU, filled and read by our kernels: the counterpart of `lmdeploy.pytorch.paged`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lmdeploy.pytorch.kernels.cache_layout import cache_channels, slot_mapping
from lmdeploy.pytorch.kernels.decoding_attention import decoding_attention
from lmdeploy.pytorch.kernels.fill_cache import fill_cache
from lmdeploy.pytorch.kernels.prompt_attention import prompt_attention
from lmdeploy.pytorch.paged import AttentionCall, LayerShape
from lmdeploy.pytorch.start.attention import uses_native
from lmdeploy.pytorch.start.flex import flex_prompt_attention
from lmdeploy.pytorch.step_context import StepContext, get_step_ctx_manager

_SCALE_BYTES = 4  # two float16 a head of a token


@dataclass(frozen=True)
class _LayerTensors:
    """Keys and values of a layer, as `cache_layout` describes them."""

    k: torch.Tensor
    v: torch.Tensor
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None

    def tensors(self) -> list[torch.Tensor]:
        """Return those that there are."""
        return [tensor for tensor in (self.k, self.v, self.k_scales, self.v_scales) if tensor is not None]


@dataclass(frozen=True)
class _AttentionMetadata:
    """Per-step tensors that all layers share."""

    slots: torch.Tensor
    max_q_len: int


class GpuPagedCache:
    """The cache of this process's share of a model.

    ``shapes``: what each layer keeps, by the layer's number. ``device``: where it is.
    """

    def __init__(
        self, shapes: Mapping[int, LayerShape], quant_policy: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._shapes = dict(shapes)
        self._bits = quant_policy or 16  # bits of an element: 8 or 4, or 0 for those of ``dtype``
        self._dtype, self._device = dtype, torch.device(device)  # type of the model's weights
        self._layers: dict[int, _LayerTensors] = {}
        self._host_layers: dict[int, _LayerTensors] = {}
        self._block_count = 0
        for shape in set(self._shapes.values()):
            uses_native(shape, dtype, self._device)  # before the first step

    def block_bytes(self, block_len: int) -> int:
        """Return how much memory a block of this many tokens takes in all layers."""
        is_quantized = self._bits < 16
        element = 1 if is_quantized else torch.empty(0, dtype=self._dtype).element_size()
        total = 0
        for shape in self._shapes.values():
            for dim in (shape.key_dim, shape.value_dim):
                head = cache_channels(dim, self._bits) * element + is_quantized * _SCALE_BYTES
                total += block_len * shape.heads * head
        return total

    def allocate(self, block_count: int, block_len: int, host_block_count: int = 0, page_bytes: int = 0) -> None:
        """Take memory for the blocks, those of the host after the others, in place of what there was."""
        del page_bytes  # a page is a block
        self._layers, self._host_layers = {}, {}  # first of all, so that both are never held
        self._block_count = block_count
        self._layers = self._tier(block_count, block_len, self._device)
        self._host_layers = self._tier(host_block_count, block_len, torch.device("cpu"))

    def move(self, moves: np.ndarray[Any, Any]) -> None:
        """Copy the content of ``moves[i, 0]`` to ``moves[i, 1]``, one after the other; int32 ``[count, 2]``.

        The copies take their turn among the kernels; nobody waits for them.
        """
        pairs = moves.tolist()
        for layer, stored in self._layers.items():
            for mine, hosts in zip(stored.tensors(), self._host_layers[layer].tensors(), strict=True):
                for source, target in pairs:
                    if target >= self._block_count:
                        hosts[target - self._block_count].copy_(mine[source], non_blocking=True)
                    else:
                        mine[target].copy_(hosts[source - self._block_count], non_blocking=True)

    def attention(
        self, layer: int, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Write the step's keys and values, and return what its queries see: ``[tokens, heads, value size]``."""
        step = get_step_ctx_manager().current_context()
        stored = self._layers[layer]
        metadata = self._metadata_of(step, stored.k.shape[1])
        scales: dict[str, Any] = {"k_scales": stored.k_scales, "v_scales": stored.v_scales, "bits": self._bits}
        fill_cache(key, value, stored.k, stored.v, metadata.slots, **scales)
        tensors = (query, stored.k, stored.v)
        spans = (step.q_start_loc, step.q_seqlens, step.kv_seqlens, step.block_offsets)
        rule: dict[str, Any] = {
            "v_dim": value.shape[-1], "scale": call.scale, "window": call.window, "softcap": call.softcap,
            "sinks": call.sinks, **scales,
        }  # fmt: skip
        if not uses_native(self._shapes[layer], self._dtype, self._device):
            return flex_prompt_attention(*tensors, *spans, max_q_len=metadata.max_q_len, **rule)
        if step.is_decoding:
            return decoding_attention(*tensors, *spans[2:], **rule)
        return prompt_attention(*tensors, *spans, max_q_len=metadata.max_q_len, **rule)

    def _tier(self, block_count: int, block_len: int, device: torch.device) -> dict[int, _LayerTensors]:
        layers = {}
        for number, shape in self._shapes.items():
            k, k_scales = self._tensors((block_count, block_len, shape.heads), shape.key_dim, device)
            v, v_scales = self._tensors((block_count, block_len, shape.heads), shape.value_dim, device)
            layers[number] = _LayerTensors(k, v, k_scales, v_scales)
        return layers

    def _tensors(
        self, shape: tuple[int, int, int], dim: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # The host's memory is locked, so that copies need not wait.
        where: Any = {"device": device, "pin_memory": device.type == "cpu" and self._device.type != "cpu"}
        if self._bits == 16:
            return torch.empty(*shape, dim, dtype=self._dtype, **where), None
        quantized = torch.empty(*shape, cache_channels(dim, self._bits), dtype=torch.uint8, **where)
        return quantized, torch.empty(*shape, 2, dtype=torch.float16, **where)

    def _metadata_of(self, step: StepContext, block_len: int) -> _AttentionMetadata:
        """Return where a step's tokens go, found out by its first layer."""
        found = step.extras.get("gpu_cache_rows")
        if found is None:
            tokens = step.input_ids.shape[-1]
            slots = slot_mapping(
                step.q_start_loc, step.q_seqlens, step.kv_seqlens, step.block_offsets, tokens, block_len
            )
            # Decoding, which graphs capture, needs no number on the host.
            max_q_len = 1 if step.is_decoding else step.max_q_len or int(step.q_seqlens.max())
            found = _AttentionMetadata(slots, max_q_len)
            step.extras["gpu_cache_rows"] = found
        assert isinstance(found, _AttentionMetadata)
        return found
