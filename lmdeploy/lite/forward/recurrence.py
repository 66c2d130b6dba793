"""Recurrent layer, token after token, as backend_cpp/kernels/recurrence.h defines it."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.turbomind.spec import ModelSpec, NormSpec, RecurrenceSpec

_LENGTH_EPS = 1e-6
_LRU_SCALE = 8  # c of Griffin's recurrent units


def recurrence(spec: ModelSpec, mixer: RecurrenceSpec, weights: LayerWeights, layer: int, x: Tensor) -> Tensor:
    """Return a recurrence's output for its normed input ``[batch, tokens, hidden]``."""
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_heads * mixer.value_dim
    inputs = weights.linear("recurrence.in", x)
    if mixer.kind == "short_convolution":
        mixed, first_gate, gate = inputs.chunk(3, dim=-1)
        found = _convolved(mixer, weights, mixed * _gate(mixer, first_gate))
    elif mixer.kind == "mamba":
        mixed, gate = inputs.chunk(2, dim=-1)
        found = _scan(spec, mixer, weights, functional.silu(_convolved(mixer, weights, mixed)))
    elif mixer.kind == "rg_lru":
        mixed, gate = inputs.chunk(2, dim=-1)
        found = _lru(mixer, weights, _convolved(mixer, weights, mixed))
    else:
        mixed, *rest = inputs.split((2 * keys + values, *_rest_of(mixer)), dim=-1)
        factors = torch.tensor((mixer.query_scale, mixer.key_scale, mixer.value_scale), device=x.device)
        sizes = torch.tensor((keys, keys, values), device=x.device)
        q, k, v = _heads(mixer, functional.silu(_convolved(mixer, weights, mixed * factors.repeat_interleave(sizes))))
        if mixer.kind in {"gated_delta", "kimi_delta"}:
            q, k = _unit(q) * mixer.key_dim**-0.5, _unit(k)
        decay, beta = _decays(mixer, weights, layer, x, rest)
        found = _recur(q, k, v, decay, beta, has_delta=mixer.kind in {"gated_delta", "kimi_delta"})
        if mixer.kind == "mamba2":
            found = found + weights.tensors["recurrence.skip"][:, None] * v
        found = found.flatten(2)
        if mixer.kind == "kimi_delta":
            gate = weights.linear("recurrence.gate_up", _low(mixer, weights, "gate", x))
        else:
            gate = mixer.gate_scale * rest[0]
    finished = _finished(spec, mixer, weights, found, _gate(mixer, gate))
    return weights.linear("recurrence.out", mixer.output_scale * finished)


def _rest_of(mixer: RecurrenceSpec) -> tuple[int, ...]:
    """Return the sizes of what the first linear layer gives besides queries, keys and values."""
    values = mixer.num_heads * mixer.value_dim
    return {"kimi_delta": (), "mamba2": (values, mixer.num_heads)}.get(mixer.kind, (values,))


def _decays(
    mixer: RecurrenceSpec, weights: LayerWeights, layer: int, x: Tensor, rest: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return decays and the strengths that are written with, ``[batch, tokens, heads]`` (Kimi: decays of channels)."""
    if mixer.kind == "lightning":
        slopes = mixer.slope_factors[layer] * torch.tensor(mixer.slopes, device=x.device)
        decay = (-slopes).exp().expand(*x.shape[:2], -1)
        return decay, torch.ones_like(decay)
    rate, bias = weights.tensors["recurrence.a_log"].exp(), weights.tensors["recurrence.dt_bias"]
    if mixer.kind == "mamba2":
        beta = functional.softplus(mixer.step_scale * rest[1] + bias).clamp(mixer.min_step, mixer.max_step or math.inf)
        return (-rate * beta).exp(), beta
    if mixer.kind == "kimi_delta":
        a = weights.linear("recurrence.decay_up", _low(mixer, weights, "decay", x)) + bias
        a, rate = a.unflatten(-1, (mixer.num_heads, -1)), rate[:, None]
        logs = mixer.decay_bound * (rate * a).sigmoid() if mixer.decay_bound else rate * functional.softplus(a)
        return (-logs).exp(), weights.linear("recurrence.gates", x).sigmoid()
    a, b = weights.linear("recurrence.gates", x).chunk(2, dim=-1)
    return (-rate * functional.softplus(a + bias)).exp(), mixer.write_scale * b.sigmoid()


def _low(mixer: RecurrenceSpec, weights: LayerWeights, name: str, x: Tensor) -> Tensor:
    return weights.linear(f"recurrence.{name}_down", x) if mixer.gate_rank else x


def _convolved(mixer: RecurrenceSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    """Return the causal convolution of ``[batch, tokens, channels]``."""
    if mixer.conv_kernel == 1:
        return x
    kernel = weights.tensors["recurrence.conv"]
    padded = functional.pad(x.transpose(1, 2), (mixer.conv_kernel - 1, 0))
    bias = weights.tensors.get("recurrence.conv_bias")
    return functional.conv1d(padded, kernel[:, None], bias, groups=len(kernel)).transpose(1, 2)


def _heads(mixer: RecurrenceSpec, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, ``[batch, tokens, heads, dim]``, of their convolved rows."""
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_heads * mixer.value_dim
    q, k, v = x.split((keys, keys, values), dim=-1)
    shared = mixer.num_heads // mixer.num_key_heads
    q, k = (part.unflatten(-1, (mixer.num_key_heads, -1)).repeat_interleave(shared, dim=2) for part in (q, k))
    return q, k, v.unflatten(-1, (mixer.num_heads, -1))


def _gate(mixer: RecurrenceSpec, gate: Tensor) -> Tensor:
    if mixer.gate == "gelu_tanh":
        return functional.gelu(gate, approximate="tanh")
    return {"silu": functional.silu, "sigmoid": torch.sigmoid, "linear": lambda x: x}[mixer.gate](gate)


def _finished(spec: ModelSpec, mixer: RecurrenceSpec, weights: LayerWeights, found: Tensor, gate: Tensor) -> Tensor:
    """Return ``[batch, tokens, values]`` through norm and gate."""
    eps = mixer.norm_eps or spec.norm.eps
    if mixer.norms_gated:
        found = found * gate
    if mixer.norm == "head":
        norm = NormSpec(eps)
        found = weights.norm("recurrence.norm", found.unflatten(-1, (mixer.num_heads, -1)), norm).flatten(2)
    elif mixer.norm == "groups":
        parts = found.unflatten(-1, (mixer.norm_groups, -1))
        normed = functional.rms_norm(parts, parts.shape[-1:], eps=eps)
        found = normed.flatten(2) * weights.weight("recurrence.norm")
    return found if mixer.norms_gated else found * gate


def _scan(spec: ModelSpec, mixer: RecurrenceSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    """Return the selective scan of ``[batch, tokens, values]``."""
    parts = [weights.linear("recurrence.step_down", x), *weights.linear("recurrence.keys_queries", x).chunk(2, dim=-1)]
    if mixer.norm != "none":
        parts = [functional.rms_norm(part, part.shape[-1:], eps=mixer.norm_eps or spec.norm.eps) for part in parts]
    if mixer.norm == "inputs":
        sizes = (mixer.gate_rank, mixer.key_dim, mixer.key_dim)
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


def _lru(mixer: RecurrenceSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    """Return the gated linear recurrent unit of ``[batch, tokens, values]``."""

    def gate(name: str) -> Tensor:
        matrices = weights.weight(f"recurrence.{name}").view(mixer.num_heads, mixer.value_dim, mixer.value_dim)
        made = torch.einsum("bthi,hoi->btho", x.unflatten(-1, (mixer.num_heads, -1)), matrices)
        return (made.flatten(2) + weights.tensors[f"recurrence.{name}.bias"]).sigmoid()

    logs = -_LRU_SCALE * gate("decay_gate") * functional.softplus(weights.tensors["recurrence.rates"])
    written = gate("input_gate") * x
    written[:, 1:] = written[:, 1:] * (1 - (2 * logs[:, 1:]).exp()).sqrt()
    state, found = torch.zeros_like(x[:, 0]), []
    for token in range(x.shape[1]):
        state = logs[:, token].exp() * state + written[:, token]
        found.append(state)
    return torch.stack(found, dim=1)


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
