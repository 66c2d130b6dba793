"""A layer that keeps a state, token after token, as backend_cpp/kernels/recurrence.h states it."""

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.turbomind.spec import ModelSpec, RecurrenceSpec

_LENGTH_EPS = 1e-6


def recurrence(spec: ModelSpec, own: RecurrenceSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    """Return what a recurrence gives for its normed input ``[batch, tokens, hidden]``."""
    keys, values = own.num_key_heads * own.key_dim, own.num_heads * own.value_dim
    inputs = weights.linear("recurrence.in", x)
    if own.kind == "short_convolution":
        mixed, first_gate, gate = inputs.chunk(3, dim=-1)
        found = _convolved(own, weights, mixed * _gate(own, first_gate))
    elif own.kind == "mamba2":
        mixed, gate, steps = inputs.split((2 * keys + values, values, own.num_heads), dim=-1)
        q, k, v = _heads(own, functional.silu(_convolved(own, weights, mixed)))
        longest = own.max_step or float("inf")
        beta = functional.softplus(steps + weights.tensors["recurrence.dt_bias"]).clamp(own.min_step, longest)
        decay = (-weights.tensors["recurrence.a_log"].exp() * beta).exp()
        found = _recur(q, k, v, decay, beta, has_delta=False)
        found = (found + weights.tensors["recurrence.skip"][:, None] * v).flatten(2)
    else:
        mixed, gate = inputs.split((2 * keys + values, values), dim=-1)
        q, k, v = _heads(own, functional.silu(_convolved(own, weights, mixed)))
        a, b = weights.linear("recurrence.gates", x).chunk(2, dim=-1)
        steps = functional.softplus(a + weights.tensors["recurrence.dt_bias"])
        decay = (-weights.tensors["recurrence.a_log"].exp() * steps).exp()
        found = _recur(_unit(q) * own.key_dim**-0.5, _unit(k), v, decay, b.sigmoid(), has_delta=True).flatten(2)
    return weights.linear("recurrence.out", _finished(spec, own, weights, found, _gate(own, gate)))


def _convolved(own: RecurrenceSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    """Return what the causal convolution makes of ``[batch, tokens, channels]``."""
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
    if own.norms_gated:
        found = found * gate
    if own.norm == "head":
        plain = dataclasses.replace(spec.norm, offset=0.0)
        found = weights.norm("recurrence.norm", found.unflatten(-1, (own.num_heads, -1)), plain).flatten(2)
    elif own.norm == "groups":
        parts = found.unflatten(-1, (own.norm_groups, -1))
        normed = functional.rms_norm(parts, parts.shape[-1:], eps=spec.norm.eps)
        found = normed.flatten(2) * weights.weight("recurrence.norm")
    return found if own.norms_gated else found * gate


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _LENGTH_EPS).rsqrt()


def _recur(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, has_delta: bool) -> Tensor:
    """Return the recurrence of ``[batch, tokens, heads, dim]``; decay and beta ``[batch, tokens, heads]``."""
    state = torch.zeros(*k[:, 0].shape, v.shape[-1], device=v.device)
    found = []
    for token in range(v.shape[1]):
        state = state * decay[:, token, :, None, None]
        write = v[:, token]
        if has_delta:
            write = write - (state * k[:, token, :, :, None]).sum(-2)
        write = beta[:, token, :, None] * write
        state = state + k[:, token, :, :, None] * write[:, :, None]
        found.append((state * q[:, token, :, :, None]).sum(-2))
    return torch.stack(found, dim=1)
