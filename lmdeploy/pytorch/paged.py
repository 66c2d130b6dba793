"""Attention over the paged cache, called by every attention layer of this engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

import lmdeploy._turbomind as _turbomind
from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.step_context import get_step_ctx_manager

_CACHE_TYPES = {8: "int8", 4: "int4"}


@dataclass(frozen=True)
class LayerShape:
    """KV cache of a layer per token: heads with a key and a value of these sizes."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class StateShape:
    """State of a recurrent layer per sequence: the last inputs of a convolution, and a matrix a head; float32."""

    conv_rows: int
    channels: int
    heads: int
    key_dim: int
    value_dim: int

    @property
    def conv_bytes(self) -> int:
        """Bytes of the inputs, aligned."""
        return _aligned(4 * self.conv_rows * self.channels)

    @property
    def state_bytes(self) -> int:
        """Bytes of all, the inputs first."""
        return self.conv_bytes + _aligned(4 * self.heads * self.key_dim * self.value_dim)

    def in_page(self, arena: Any, page: int, offset: int) -> LayerState:
        """Return the layer's state at an offset of a sequence's page of this number."""
        return LayerState(
            _turbomind.LayerState(arena, page, offset), _turbomind.LayerState(arena, page, offset + self.conv_bytes)
        )


@dataclass(frozen=True)
class LayerState:
    """Where a layer's states lie: `_turbomind.LayerState` of the convolution and of the matrices."""

    conv: Any
    matrices: Any


def _aligned(size: int) -> int:
    return (size + 63) // 64 * 64


@dataclass(frozen=True)
class AttentionCall:
    """Arguments of attention beside queries, keys and values."""

    scale: float  # multiplies q.k
    window: int = 0  # keys so far back or further are not seen, a token's own position counted; 0: all are
    softcap: float = 0.0  # scores become ``softcap tanh(score / softcap)``; 0: they stay
    sinks: torch.Tensor | None = None  # ``[heads]``: logits that take part in the softmax and have no value; None: none
    # ``[heads]`` float32: scores lose this for each position that a key is further back; None: nothing
    alibi_slopes: torch.Tensor | None = None


class PagedCache:
    """The cache of this process's share of a model, on the CPU."""

    def __init__(
        self,
        shapes: Mapping[int, LayerShape],  # what each layer keeps, by the layer's number
        quant_policy: int,  # bits of an element: 8 or 4, or 0 for those of ``dtype``
        dtype: torch.dtype,  # type of the model's weights
        kernels: Kernels,  # what computes
        # State of each recurrent layer, by the layer's number; all of the same size
        states: Mapping[int, StateShape] = MappingProxyType({}),
    ) -> None:
        self._shapes, self._state_shapes = dict(shapes), dict(states)
        self._type = _CACHE_TYPES.get(quant_policy, "float32" if dtype == torch.float32 else "bfloat16")
        self._kernels = kernels
        self._arena: Any = None
        self._layers: dict[int, Any] = {}
        self._states: dict[int, LayerState] = {}
        self.state_pages = 0  # how many pages hold the state of a sequence, once there is memory

    def block_bytes(self, block_len: int) -> int:
        """Return how much memory a block of this many tokens takes in all layers."""
        return sum(self._layer_bytes(shape, block_len) for shape in self._shapes.values())

    def state_of(self, layer: int, _: StateShape) -> LayerState:
        """Return where a recurrent layer's states lie."""
        return self._states[layer]

    def allocate(self, block_count: int, block_len: int, host_block_count: int = 0, page_bytes: int = 0) -> None:
        """Take memory for the pages, those of the host after the others, in place of what there was.

        A block of all layers with keys and values takes one page, the state of a sequence as many as it fills. By
        default a page is as large as a block.
        """
        page_bytes = page_bytes or self.block_bytes(block_len)
        self._layers, self._states = {}, {}
        self._arena = None  # so that both are never held
        self._arena = _turbomind.PageArena(page_bytes, block_count + host_block_count)
        offset = 0
        for number, shape in self._shapes.items():
            self._layers[number] = _turbomind.LayerCache(
                self._arena, offset, self._type, shape.heads, shape.key_dim, shape.value_dim, block_len
            )
            offset += self._layer_bytes(shape, block_len)
        for index, (number, state) in enumerate(self._state_shapes.items()):
            in_page = page_bytes // state.state_bytes
            page, piece = divmod(index, in_page)
            self._states[number] = state.in_page(self._arena, page, piece * state.state_bytes)
            self.state_pages = page + 1

    def move(self, moves: np.ndarray[Any, Any]) -> None:
        """Copy the content of ``moves[i, 0]`` to ``moves[i, 1]``, one after the other; int32 ``[count, 2]``."""
        self._arena.move(moves)

    def _layer_bytes(self, shape: LayerShape, block_len: int) -> int:
        return _turbomind.cache_block_bytes(self._type, shape.heads, shape.key_dim, shape.value_dim, block_len)

    def attention(
        self, layer: int, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Write the step's keys and values, and return what its queries see: float32 ``[rows, heads, value size]``."""
        return self._kernels.attention(
            self._layers[layer],
            query.float() * call.scale,
            key.float(),
            value.float(),
            softcap=call.softcap,
            window=call.window,
            sinks=call.sinks,
            alibi_slopes=call.alibi_slopes,
        )


def paged_attention(
    layer: int, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Attend in the step that runs: its rows' keys and values are written to the cache first.

    ``layer``: the layer's number. ``query``, ``key``, ``value``: ``[rows, heads, size]``, rotated; the last axis is
    dense. Returns float32 ``[rows, heads, value size]``.
    """
    cache = get_step_ctx_manager().current_context().kv_caches
    output: torch.Tensor = cache.attention(layer, call, query, key, value)
    return output
