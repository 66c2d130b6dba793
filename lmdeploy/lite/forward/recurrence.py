"""Recurrent layer, token after token, as backend_cpp/kernels/recurrence.h defines it."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.turbomind.spec import ModelSpec, NormSpec, RecurrenceSpec

_LENGTH_EPS = 1e-6


def recurrence(spec: ModelSpec, own: RecurrenceSpec, weights: LayerWeights, layer: int, x: Tensor) -> Tensor:
    """Return a recurrence's output for its normed input ``[batch, tokens, hidden]``."""
    keys, values = own.num_key_heads * own.key_dim, own.num_heads * own.value_dim
    inputs = weights.linear("recurrence.in", x)
    if own.kind == "short_convolution":
        mixed, first_gate, gate = inputs.chunk(3, dim=-1)
        found = _convolved(own, weights, mixed * _gate(own, first_gate))
    elif own.kind == "mamba":
        mixed, gate = inputs.chunk(2, dim=-1)
        found = _scan(spec, own, weights, functional.silu(_convolved(own, weights, mixed)))
    else:
        mixed, *rest = inputs.split((2 * keys + values, *_rest_of(own)), dim=-1)
        factors = torch.tensor((own.query_scale, own.key_scale, own.value_scale), device=x.device)
        sizes = torch.tensor((keys, keys, values), device=x.device)
        q, k, v = _heads(own, functional.silu(_convolved(own, weights, mixed * factors.repeat_interleave(sizes))))
        if own.kind in {"gated_delta", "kimi_delta"}:
            q, k = _unit(q) * own.key_dim**-0.5, _unit(k)
        decay, beta = _decays(own, weights, layer, x, rest)
        found = _recur(q, k, v, decay, beta, has_delta=own.kind in {"gated_delta", "kimi_delta"})
        if own.kind == "mamba2":
            found = found + weights.tensors["recurrence.skip"][:, None] * v
        found = found.flatten(2)
        if own.kind == "kimi_delta":
            gate = weights.linear("recurrence.gate_up", weights.linear("recurrence.gate_down", x))
        else:
            gate = own.gate_scale * rest[0]
    finished = _finished(spec, own, weights, found, _gate(own, gate))
    return weights.linear("recurrence.out", own.output_scale * finished)


def _rest_of(own: RecurrenceSpec) -> tuple[int, ...]:
    """Return the sizes of what the first linear layer gives besides queries, keys and values."""
    values = own.num_heads * own.value_dim
    return {"kimi_delta": (), "mamba2": (values, own.num_heads)}.get(own.kind, (values,))


def _decays(
    own: RecurrenceSpec, weights: LayerWeights, layer: int, x: Tensor, rest: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return decays and the strengths that are written with, ``[batch, tokens, heads]`` (Kimi: decays of channels)."""
    if own.kind == "lightning":
        slopes = own.slope_factors[layer] * torch.tensor(own.slopes, device=x.device)
        decay = (-slopes).exp().expand(*x.shape[:2], -1)
        return decay, torch.ones_like(decay)
    rate, bias = weights.tensors["recurrence.a_log"].exp(), weights.tensors["recurrence.dt_bias"]
    if own.kind == "mamba2":
        beta = functional.softplus(own.step_scale * rest[1] + bias).clamp(own.min_step, own.max_step or math.inf)
        return (-rate * beta).exp(), beta
    if own.kind == "kimi_delta":
        a = weights.linear("recurrence.decay_up", weights.linear("recurrence.decay_down", x))
        steps = functional.softplus(a + bias).unflatten(-1, (own.num_heads, -1))
        return (-rate[:, None] * steps).exp(), weights.linear("recurrence.gates", x).sigmoid()
    a, b = weights.linear("recurrence.gates", x).chunk(2, dim=-1)
    return (-rate * functional.softplus(a + bias)).exp(), own.write_scale * b.sigmoid()


def _convolved(own: RecurrenceSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    """Return the causal convolution of ``[batch, tokens, channels]``."""
    if own.conv_kernel == 1:
        return x
    kernel = weights.tensors["recurrence.conv"]
    padded = functional.pad(x.transpose(1, 2), (own.conv_kernel - 1, 0))
    bias = weights.tensors.get("recurrence.conv_bias")
    return functional.conv1d(padded, kernel[:, None], bias, groups=len(kernel)).transpose(1, 2)


def _heads(own: RecurrenceSpec, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, ``[batch, tokens, heads, dim]``, of their convolved rows."""
    keys, values = own.num_key_heads * own.key_dim, own.num_heads * own.value_dim
    q, k, v = x.split((keys, keys, values), dim=-1)
    shared = own.num_heads // own.num_key_heads
    q, k = (part.unflatten(-1, (own.num_key_heads, -1)).repeat_interleave(shared, dim=2) for part in (q, k))
    return q, k, v.unflatten(-1, (own.num_heads, -1))


def _gate(own: RecurrenceSpec, gate: Tensor) -> Tensor:
    return {"silu": functional.silu, "sigmoid": torch.sigmoid, "linear": lambda x: x}[own.gate](gate)


def _finished(spec: ModelSpec, own: RecurrenceSpec, weights: LayerWeights, found: Tensor, gate: Tensor) -> Tensor:
    """Return ``[batch, tokens, values]`` through norm and gate."""
    eps = own.norm_eps or spec.norm.eps
    if own.norms_gated:
        found = found * gate
    if own.norm == "head":
        plain = NormSpec(eps)
        found = weights.norm("recurrence.norm", found.unflatten(-1, (own.num_heads, -1)), plain).flatten(2)
    elif own.norm == "groups":
        parts = found.unflatten(-1, (own.norm_groups, -1))
        normed = functional.rms_norm(parts, parts.shape[-1:], eps=eps)
        found = normed.flatten(2) * weights.weight("recurrence.norm")
    return found if own.norms_gated else found * gate


def _scan(spec: ModelSpec, own: RecurrenceSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    """Return the selective scan of ``[batch, tokens, values]``."""
    parts = [weights.linear("recurrence.step_down", x), *weights.linear("recurrence.keys_queries", x).chunk(2, dim=-1)]
    if own.norm != "none":
        parts = [functional.rms_norm(part, part.shape[-1:], eps=own.norm_eps or spec.norm.eps) for part in parts]
    if own.norm == "inputs":
        sizes = (own.gate_rank, own.key_dim, own.key_dim)
        parts = [
            part * weight for part, weight in zip(parts, weights.weight("recurrence.norm").split(sizes), strict=True)
        ]
    low, keys, queries = parts
    steps = functional.softplus(weights.linear("recurrence.step_up", low))
    rates = -weights.tensors["recurrence.a_log"].exp()
    state = torch.zeros(len(x), *rates.shape, device=x.device)
    found = []
    for token in range(x.shape[1]):
        step = steps[:, token, :, None]
        state = (rates * step).exp() * state + step * x[:, token, :, None] * keys[:, token, None]
        found.append((state * queries[:, token, None]).sum(-1))
    return torch.stack(found, dim=1) + weights.tensors["recurrence.skip"] * x


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _LENGTH_EPS).rsqrt()


def _recur(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, has_delta: bool) -> Tensor:
    """Return the recurrence of ``[batch, tokens, heads, dim]``; decays also ``[.., heads, key_dim]``."""
    state = torch.zeros(*k[:, 0].shape, v.shape[-1], device=v.device)
    found = []
    for token in range(v.shape[1]):
        state = state * (decay[:, token, :, :, None] if decay.dim() == 4 else decay[:, token, :, None, None])
        write = v[:, token]
        if has_delta:
            write = write - (state * k[:, token, :, :, None]).sum(-2)
        write = beta[:, token, :, None] * write
        state = state + k[:, token, :, :, None] * write[:, :, None]
        found.append((state * q[:, token, :, :, None]).sum(-2))
    return torch.stack(found, dim=1)
