"""Attention over the paged cache: what every layer of every model of this engine calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import lmdeploy._turbomind as _turbomind
from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.step_context import get_step_ctx_manager

_CACHE_TYPES = {8: "int8", 4: "int4"}


@dataclass(frozen=True)
class LayerShape:
    """What a layer keeps of a token: this many heads with a key and a value of these sizes."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class AttentionCall:
    """What a layer asks of attention, alongside queries, keys and values.

    Parameters
    ----------
    scale
        Multiplies q.k.
    window
        Keys so far back or further are not seen, a token's own position counted; 0: all are.
    softcap
        Scores become ``softcap tanh(score / softcap)``; 0: they stay.
    sinks
        ``[heads]``: logits that take part in the softmax and have no value; None: none.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


class PagedCache:
    """The cache of this process's share of a model, on the CPU.

    Parameters
    ----------
    shapes
        What each layer keeps, by the layer's number.
    quant_policy
        Bits of an element: 8 or 4, or 0 for those of ``dtype``.
    dtype
        Type of the model's weights.
    kernels
        What computes.
    """

    def __init__(
        self, shapes: Mapping[int, LayerShape], quant_policy: int, dtype: torch.dtype, kernels: Kernels
    ) -> None:
        self._shapes = dict(shapes)
        self._type = _CACHE_TYPES.get(quant_policy, "float32" if dtype == torch.float32 else "bfloat16")
        self._kernels = kernels
        self._layers: dict[int, Any] = {}

    def block_bytes(self, block_len: int) -> int:
        """Return how much memory a block of this many tokens takes in all layers."""
        return sum(
            _turbomind.cache_block_bytes(self._type, shape.heads, shape.key_dim, shape.value_dim, block_len)
            for shape in self._shapes.values()
        )

    def allocate(self, block_count: int, block_len: int, host_block_count: int = 0) -> None:
        """Take memory for the blocks, those of the host behind the others, in place of what there was."""
        count = block_count + host_block_count
        self._layers = {
            number: _turbomind.LayerCache(self._type, shape.heads, shape.key_dim, shape.value_dim, block_len, count)
            for number, shape in self._shapes.items()
        }

    def move(self, moves: np.ndarray[Any, Any]) -> None:
        """Copy the content of ``moves[i, 0]`` to ``moves[i, 1]``, one after the other; int32 ``[count, 2]``."""
        for layer in self._layers.values():
            layer.move(moves)

    def attend(
        self, layer: int, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Write the step's keys and values, and return what its queries see: float32 ``[rows, heads, value size]``."""
        return self._kernels.attend(
            self._layers[layer],
            query.float() * call.scale,
            key.float(),
            value.float(),
            softcap=call.softcap,
            window=call.window,
            sinks=call.sinks,
        )


def paged_attention(
    layer: int, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """Attend in the step that runs: its rows' keys and values are written to the cache first.

    Parameters
    ----------
    layer
        The layer's number.
    call
        How.
    query, key, value
        ``[rows, heads, size]``, rotated; the last axis is dense.

    Returns
    -------
    torch.Tensor
        float32 ``[rows, heads, value size]``.
    """
    cache = get_step_ctx_manager().current_context().kv_caches
    attended: torch.Tensor = cache.attend(layer, call, query, key, value)
    return attended
