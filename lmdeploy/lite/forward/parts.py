"""Parts of a decoder layer: observable linear layers, norms, activations."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from lmdeploy.turbomind.spec import NormSpec

_GATE_LIMIT, _GATE_SLOPE = 7.0, 1.702  # of clamped_swiglu
_SILU_LIMIT = 10.0  # of clamped_silu_10
_LIMITS = {"silu_7": 7.0, "silu_16": 16.0}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}

Watch = Callable[[str, Tensor], None]


class LayerWeights:
    """Tensors of a layer by the engine's names, and observers of its linear layers."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)  # ``attention.qkv.weight`` and so on, float32
        self.watch: Watch | None = None  # called with the name of each linear layer and its inputs ``[..., in]``
        self.watch_output: Watch | None = None  # the same with its outputs ``[..., out]``

    def __contains__(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def weight(self, name: str) -> Tensor:
        """Return the weight of a linear layer ``[out, in]`` or of a norm ``[features]``."""
        return self.tensors[f"{name}.weight"]

    def bias(self, name: str) -> Tensor | None:
        """Return the bias ``[out]`` of a linear layer or a norm, if it has one."""
        return self.tensors.get(f"{name}.bias")

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return a linear layer's output for ``[..., in]``."""
        if self.watch is not None:
            self.watch(name, x)
        y = functional.linear(x, self.weight(name), self.bias(name))
        if self.watch_output is not None:
            self.watch_output(name, y)
        return y

    def norm(self, name: str, x: Tensor, spec: NormSpec, eps: float | None = None) -> Tensor:
        """Return the normed rows of ``[..., features]``; ``eps`` in place of the spec's.

        A longer weight has numbers of its own for each head of ``[..., heads, rows, features]``.
        """
        if spec.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x * (x.square().mean(-1, keepdim=True) + (spec.eps if eps is None else eps)).rsqrt()
        weight = self.weight(name)
        x = x * ((weight if len(weight) == x.shape[-1] else weight.view(-1, 1, x.shape[-1])) + spec.offset)
        bias = self.bias(name)
        return x if bias is None else x + bias


def xielu(x: Tensor, positive: Tensor, negative: Tensor, linear: Tensor) -> Tensor:
    """Return xIELU of ``[..., size]``; ``positive`` and ``negative`` as stored, in front of a softplus."""
    low = x.clamp(max=0)
    bent = (linear + functional.softplus(negative)) * (torch.expm1(low) - low)
    return functional.softplus(positive) * x.clamp(min=0).square() + bent + linear * x


def activate(kind: str, x: Tensor, *, is_gated: bool) -> Tensor:
    """Return the activation of ``[..., size]``, or, gated, of ``[..., 2 size]``: gates first."""
    if not is_gated:
        return _ACTIVATIONS[kind](x)
    gate, up = x.chunk(2, dim=-1)
    if limit := _LIMITS.get(kind):
        return functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
    if kind == "clamped_silu_10":
        return functional.silu(gate.clamp(max=_SILU_LIMIT)) * up.clamp(-_SILU_LIMIT, _SILU_LIMIT)
    if kind != "clamped_swiglu":
        return _ACTIVATIONS[kind](gate) * up
    gate = gate.clamp(max=_GATE_LIMIT)
    return (up.clamp(-_GATE_LIMIT, _GATE_LIMIT) + 1) * gate * torch.sigmoid(_GATE_SLOPE * gate)
