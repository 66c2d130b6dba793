"""Operators in plain float64."""

import torch


def rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + head_dim / 2) of ``x`` ``[rows, heads, head_dim]`` by ``angle`` ``[rows, head_dim / 2]``."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def round_heads(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return what an asymmetric rounding of each head ``[rows, heads, head_dim]`` stands for, in float64."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    largest = 2**bits - 1
    scale = ((high - low) / largest).half().float()
    zero = (-low * (1 / scale)).round().clamp(0, largest)
    codes = (x * (1 / scale) + zero).round().clamp(0, largest)
    return (codes.double() - zero.double()) * scale.double()


def attention_reference(
    qkv: torch.Tensor,
    angle: torch.Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    cache_dtype: torch.dtype = torch.float64,
    cache_bits: int = 0,
) -> torch.Tensor:
    """Return causal attention of one sequence, ``[rows, heads head_dim]``; arguments as in ``ops.PagedAttention``."""
    rows = qkv.shape[0]
    parts = qkv.double().view(rows, heads + 2 * kv_heads, head_dim)
    q, k, v = parts.split([heads, kv_heads, kv_heads], dim=1)
    q, k = rotate(q, angle.double()), rotate(k, angle.double())
    if cache_dtype != torch.float64:
        k, v = k.float().to(cache_dtype).double(), v.float().to(cache_dtype).double()
    if cache_bits:
        k, v = round_heads(k.float(), cache_bits), round_heads(v.float(), cache_bits)
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    mask = torch.ones(rows, rows, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v).reshape(rows, heads * head_dim)


def round_weight(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Return the float64 values that codes of ``bits`` bits stand for, as kernels/packed_weight.h says."""
    out_features, in_features = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -in_features % group)).view(out_features, -1, group)
    if bits == 8:
        scale = (padded.abs().amax(-1, keepdim=True) / 127).half().float()
        low, high = -128, 127
    else:
        extreme = padded.gather(-1, padded.abs().argmax(-1, keepdim=True))
        scale = (extreme / -8).half().float()
        low, high = -8, 7
    steps = torch.where(scale != 0, padded * (1 / scale), torch.zeros_like(padded)).round().clamp(low, high)
    return (steps.double() * scale.double()).reshape(out_features, -1)[:, :in_features]


def round_activations(x: torch.Tensor, group: int) -> torch.Tensor:
    """Return the float64 values that the kernels multiply for ``x`` ``[rows, in_features]``."""
    rows, in_features = x.shape
    padded = torch.nn.functional.pad(x, (0, -in_features % group)).view(rows, -1, group)
    scale = padded.abs().amax(-1, keepdim=True) / 127
    scaled = torch.where(scale > 0, padded * (1 / scale), torch.zeros_like(padded))
    return (scaled.round().double() * scale.double()).reshape(rows, -1)[:, :in_features]
