"""Operators in plain float64."""

import torch


def rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + head_dim / 2) of ``x`` ``[rows, heads, head_dim]`` by ``angle`` ``[rows, head_dim / 2]``."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attention_reference(
    qkv: torch.Tensor,
    angle: torch.Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    cache_dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Return causal attention of one sequence, ``[rows, heads head_dim]``; arguments as in ``ops.PagedAttention``."""
    rows = qkv.shape[0]
    parts = qkv.double().view(rows, heads + 2 * kv_heads, head_dim)
    q, k, v = parts.split([heads, kv_heads, kv_heads], dim=1)
    q, k = rotate(q, angle.double()), rotate(k, angle.double())
    if cache_dtype != torch.float64:
        k, v = k.float().to(cache_dtype).double(), v.float().to(cache_dtype).double()
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    mask = torch.ones(rows, rows, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(rows, heads * head_dim)
