"""Attention of a layer over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.nn.build_context import build_context
from lmdeploy.pytorch.paged import AttentionCall
from lmdeploy.pytorch.ranks import Ranks
from lmdeploy.turbomind.families.rope import alibi_slopes


@dataclass(frozen=True)
class LayerCache:
    """The cache of keys, or of values, of a layer: what a model finds in ``past_key_values[layer]``."""

    cache: Any  # the cache of all layers
    layer: int  # the layer's number

    def attention(
        self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Write the step's keys and values, and return what its queries see."""
        output: torch.Tensor = self.cache.attention(self.layer, call, query, key, value)
        return output


class Attention(nn.Module):
    """Causal attention; a key head serves as many query heads as there are more of those.

    Parameters
    ----------
    num_heads, head_size, num_kv_heads, v_head_size
        Of the whole layer. What a rank has of it follows from the tensors.
    scale
        Factor of the scores; ``head_size ** -0.5`` by default.
    sliding_window
        A token sees this many positions, its own counted; None or less than 1: all.
    logit_softcapping
        Scores become ``cap * tanh(score / cap)``; None or 0: they stay.
    sinks
        ``[heads]``: a score more in each softmax, without a value.
    alibi
        Scores fall with the distance, in each head by another slope (Press et al., 2022); on CPUs alone.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float | None = None,
        num_kv_heads: int | None = None,
        v_head_size: int | None = None,
        alibi: bool = False,
        sliding_window: int | None = None,
        logit_softcapping: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        context = build_context()
        if alibi and context.kernels is None:
            raise UnsupportedModelError("ALiBi (Attention(alibi=True)) runs on CPUs alone in the PyTorch engine")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.head_size, self.v_head_size = head_size, v_head_size or head_size
        self._call = AttentionCall(
            scale=head_size**-0.5 if scale is None else float(scale),
            window=max(0, sliding_window or 0),
            softcap=float(logit_softcapping or 0.0),
            sinks=sinks,
            alibi_slopes=_slopes(num_heads, context.ranks) if alibi else None,
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: LayerCache,
        v_cache: LayerCache,
        attn_metadata: Any = None,
        k_scales_zeros: Any = None,
        v_scales_zeros: Any = None,
        inplace: bool = True,
    ) -> torch.Tensor:
        """Write keys and values to the cache, and attend.

        Parameters
        ----------
        query, key, value
            ``[rows, heads, head size]``, rotated.
        k_cache, v_cache
            Of ``past_key_values[layer]``. Scales of a quantized cache are part of it.
        attn_metadata
            The step; which rows belong to which sequence is known without it.
        inplace
            Accepted; the result is its own tensor.

        Returns
        -------
        torch.Tensor
            ``[rows, heads, value head size]`` of the query's type.
        """
        return k_cache.attention(self._call, query, key, value).to(query.dtype)


def _slopes(num_heads: int, ranks: Ranks) -> torch.Tensor:
    """Return the slopes ``[heads]`` of this rank's heads."""
    return torch.tensor(alibi_slopes(num_heads)[ranks.slice_of(num_heads, "the number of heads")], dtype=torch.float32)
