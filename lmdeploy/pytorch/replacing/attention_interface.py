"""Paged attention for modelling code of ``transformers``, through its attention interface."""

from __future__ import annotations

from typing import Any

import torch

from lmdeploy.pytorch.paged import AttentionCall, paged_attention

NAME = "lmdeploy_paged"

# Arguments of modelling code that attention ignores: the mask follows from the step.
_IGNORED = {
    "attention_mask", "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "dropout", "is_causal", "logits_to_keep",
    "max_length_k", "max_length_q", "output_attentions", "output_hidden_states", "output_router_logits",
    "past_key_values", "position_embeddings", "position_ids", "return_dict", "target_dtype", "use_cache",
}  # fmt: skip


def attention(
    module: torch.nn.Module,  # the layer; has ``layer_idx``
    # ``[1, heads, rows, size]``
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # None, as `no_mask` made it
    scaling: float | None = None,  # multiplies q.k; None: ``size ** -0.5``
    # As `AttentionCall` has them
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attend for a layer of a model of ``transformers``.

    Raises `ValueError` for what the paged attention cannot do. Returns ``[1, rows, heads, size]`` of the queries' type,
    dense, and None for the weights.
    """
    is_causal = more.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise ValueError("its attention looks ahead")
    unknown = sorted(name for name, given in more.items() if name not in _IGNORED and given is not None)
    if unknown:
        raise ValueError(f"its attention takes {', '.join(unknown)}, which ours does not know")
    if attention_mask is not None:
        raise ValueError("its attention makes its own mask")
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise ValueError("its attention does not say which layer it is of")
    call = AttentionCall(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=int(sliding_window or 0),
        softcap=float(softcap or 0.0),
        sinks=None if s_aux is None else s_aux.detach().to(torch.float32).contiguous(),
    )
    heads = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return paged_attention(int(layer), call, *heads).to(query.dtype)[None].contiguous(), None


def no_mask(*_: Any, **__: Any) -> None:
    """Make no mask."""


def register() -> None:
    """Register this attention with ``transformers``."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, no_mask)
