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
    mixed, gate = weights.linear("recurrence.in", x).split((2 * keys + values, values), dim=-1)
    kernel = weights.tensors["recurrence.conv"]
    padded = functional.pad(mixed.transpose(1, 2), (own.conv_kernel - 1, 0))
    mixed = functional.silu(functional.conv1d(padded, kernel[:, None], groups=len(kernel))).transpose(1, 2)
    q, k, v = mixed.split((keys, keys, values), dim=-1)
    shared = own.num_heads // own.num_key_heads
    q, k = (_unit(part.unflatten(-1, (own.num_key_heads, -1))).repeat_interleave(shared, dim=2) for part in (q, k))
    a, b = weights.linear("recurrence.gates", x).chunk(2, dim=-1)
    rate = weights.tensors["recurrence.a_log"].exp() * functional.softplus(a + weights.tensors["recurrence.dt_bias"])
    found = _recur(q * own.key_dim**-0.5, k, v.unflatten(-1, (own.num_heads, -1)), (-rate).exp(), b.sigmoid())
    normed = weights.norm("recurrence.norm", found, dataclasses.replace(spec.norm, offset=0.0))
    return weights.linear("recurrence.out", normed.flatten(2) * functional.silu(gate))


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _LENGTH_EPS).rsqrt()


def _recur(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Return the gated delta rule of ``[batch, tokens, heads, dim]``; decay and beta ``[batch, tokens, heads]``."""
    state = torch.zeros(*k[:, 0].shape, v.shape[-1], device=v.device)
    found = []
    for token in range(v.shape[1]):
        state = state * decay[:, token, :, None, None]
        seen = (state * k[:, token, :, :, None]).sum(-2)
        write = beta[:, token, :, None] * (v[:, token] - seen)
        state = state + k[:, token, :, :, None] * write[:, :, None]
        found.append((state * q[:, token, :, :, None]).sum(-2))
    return torch.stack(found, dim=1)
