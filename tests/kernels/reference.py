"""Operators in plain float64."""

from typing import Any

import torch
from torch.nn import functional

from tests.kernels.arguments import AttentionRule


def rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + head_dim / 2) of ``x`` ``[rows, heads, head_dim]`` by ``angle`` ``[rows, head_dim / 2]``."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotate_part(x: torch.Tensor, angle: torch.Tensor, is_interleaved: bool) -> torch.Tensor:
    """Rotate the first 2 ``pairs`` of each head by ``angle`` ``[rows, pairs]``, in float64.

    A pair is of neighbours where ``is_interleaved``, else of dimensions ``pairs`` apart.
    """
    width = 2 * angle.shape[1]
    part = x[..., :width].double()
    halves = torch.cat([part[..., 0::2], part[..., 1::2]], -1) if is_interleaved else part
    first, second = rotate(halves, angle.double()).chunk(2, -1)
    turned = torch.stack([first, second], -1).flatten(-2) if is_interleaved else torch.cat([first, second], -1)
    return torch.cat([turned, x[..., width:].double()], -1)


def quantize_heads(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an asymmetric rounding of each head ``[rows, heads, head_dim]``: codes, scales and zeros."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    largest = 2**bits - 1
    scale = ((high - low) / largest).half().float()
    zero = (-low * (1 / scale)).round().clamp(0, largest)
    return (x * (1 / scale) + zero).round().clamp(0, largest), scale, zero


def round_heads(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the numbers that codes of `quantize_heads` stand for, in float64."""
    quantized, scale, zero = (part.double() for part in quantize_heads(x, bits))
    return (quantized - zero) * scale


def attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
    """Return causal attention of one sequence; queries, keys, values and the result are ``[rows, heads, dim]``."""
    rows, heads = q.shape[:2]
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * rule.scale
    if rule.softcap:
        scores = (scores / rule.softcap).tanh() * rule.softcap
    behind = torch.arange(rows)[:, None] - torch.arange(rows)[None]
    if rule.alibi_slopes is not None:
        scores = scores - rule.alibi_slopes.double()[:, None, None] * behind.abs()
    if rule.distance_biases is not None:
        reach = rule.distance_biases.shape[1] // 2
        scores = scores + rule.distance_biases.double()[:, reach - behind.clamp(-reach, reach)]
    kv_lens = torch.tensor([rule.kv_len_of(position) for position in range(rows)])
    hidden = (torch.arange(rows)[None] >= kv_lens[:, None]) | ((behind >= rule.window) if rule.window else False)
    scores = scores.masked_fill(hidden, float("-inf"))
    if rule.sinks is not None:
        sink = rule.sinks.double()[:, None, None].expand(heads, rows, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = scores.softmax(-1)[:, :, :rows]
    return torch.einsum("hij,jhd->ihd", weights, v)


def attention_of_last(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool = True, **rule: Any
) -> torch.Tensor:
    """Return attention of the last rows of a sequence, as `attention_reference` computes it for all."""
    context, rows = len(keys), len(query)
    every = functional.pad(query.cpu(), (0, 0, 0, 0, context - rows, 0))
    rule = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in rule.items()}
    images = () if is_causal else ((0, context),)
    return attention_reference(every, keys.cpu(), values.cpu(), AttentionRule(images=images, **rule))[-rows:]


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


LARGEST_FLOAT8 = 448


def round_to_float8(x: torch.Tensor, width: int) -> torch.Tensor:
    """Return ``x`` in float8 (E4M3) with a scale for each row and ``width`` inputs, in float64."""
    parts = []
    for part in x.split(width, dim=-1):
        scale = part.abs().amax(-1, keepdim=True) / LARGEST_FLOAT8
        parts.append((part / scale).to(torch.float8_e4m3fn).double() * scale.double())
    return torch.cat(parts, -1)


def round_activations(x: torch.Tensor, group: int) -> torch.Tensor:
    """Return the float64 values that the kernels multiply for ``x`` ``[rows, in_features]``."""
    rows, in_features = x.shape
    padded = torch.nn.functional.pad(x, (0, -in_features % group)).view(rows, -1, group)
    scale = padded.abs().amax(-1, keepdim=True) / 127
    scaled = torch.where(scale > 0, padded * (1 / scale), torch.zeros_like(padded))
    return (scaled.round().double() * scale.double()).reshape(rows, -1)[:, :in_features]


def scaled_values(quantized: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the float64 values of codes ``[out, in]`` with a scale for each block of outputs and inputs."""
    by_output = scales.double().repeat_interleave(min(block[0], quantized.shape[0]), 0)[: quantized.shape[0]]
    return (
        quantized.double() * by_output.repeat_interleave(min(block[1], quantized.shape[1]), 1)[:, : quantized.shape[1]]
    )
