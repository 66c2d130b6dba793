"""Layers of ``transformers`` that keep a state a sequence, on the C++ engine's kernels, for CPUs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.paged import StateShape
from lmdeploy.pytorch.recording import RecordingCache
from lmdeploy.pytorch.step_context import get_step_ctx_manager

_TRIED_ROWS, _TOLERANCE = 24, 1e-3  # of the largest output
_LENGTH_EPS = 1e-6  # added to the square of the length that queries and keys are divided by
# What a gated delta network has in the modelling code of Qwen3-Next and Qwen3.5.
_OF_GATED_DELTA = ("A_log", "conv1d", "dt_bias", "norm", "num_k_heads", "num_v_heads", "out_proj")


class GatedDeltaNet(nn.Module):
    """A gated delta network (Yang et al., 2024) in the place of one of ``transformers``, whose projections it keeps.

    Parameters
    ----------
    theirs
        The layer.
    kernels
        What computes.
    """

    def __init__(self, theirs: Any, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels
        self.layer_idx = int(theirs.layer_idx)
        self._key_heads, self._heads = int(theirs.num_k_heads), int(theirs.num_v_heads)
        self._key_dim, self._value_dim = int(theirs.head_k_dim), int(theirs.head_v_dim)
        for name, module in theirs.named_children():
            if name not in ("conv1d", "norm"):
                self.add_module(name, module)
        self._conv = _floats(theirs.conv1d.weight.squeeze(1))
        self._conv_bias = None if theirs.conv1d.bias is None else _floats(theirs.conv1d.bias)
        self._a_log, self._dt_bias = _floats(theirs.A_log), _floats(theirs.dt_bias)
        self._norm, self._norm_eps = _floats(theirs.norm.weight), float(theirs.norm.variance_epsilon)
        # A norm makes a vector's mean square 1, so that its length is the root of its size.
        self._query_scale = torch.full((self._key_dim,), 1 / self._key_dim)
        self._key_scale = torch.full((self._key_dim,), self._key_dim**-0.5)
        channels, kernel = self._conv.shape
        self._shape = StateShape(kernel - 1, channels, self._heads, self._key_dim, self._value_dim)

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return ``[1, rows, hidden]`` for ``[1, rows, hidden]``, and advance the states of the step's sequences."""
        state = get_step_ctx_manager().current_context().kv_caches.state_of(self.layer_idx, self._shape)
        mixed, gate, a, b = self._project(hidden_states)
        mixed = self._kernels.causal_conv(state.conv, self._conv, self._conv_bias, mixed)
        rows, keys = len(mixed), self._key_heads * self._key_dim
        query = mixed[:, :keys].unflatten(1, (self._key_heads, self._key_dim))
        key = mixed[:, keys : 2 * keys].unflatten(1, (self._key_heads, self._key_dim))
        value = mixed[:, 2 * keys :].unflatten(1, (self._heads, self._value_dim))
        eps = _LENGTH_EPS / self._key_dim
        self._kernels.rms_norm_heads(self._query_scale, eps, query)
        self._kernels.rms_norm_heads(self._key_scale, eps, key)
        decay, beta = self._kernels.delta_gates(self._a_log, self._dt_bias, a, b)
        out = self._kernels.gated_delta_rule(state.matrices, decay, beta, query, key, value)
        self._kernels.rms_norm_heads(self._norm, self._norm_eps, out)
        self._kernels.silu_gate(gate.reshape(rows, self._heads, self._value_dim), out)
        projected: torch.Tensor = self.out_proj(out.reshape(1, rows, -1))
        return projected

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values, their gate, and the inputs of decays and of betas: ``[rows, ..]``."""
        if hasattr(self, "in_proj_qkv"):
            return self.in_proj_qkv(x)[0], self.in_proj_z(x)[0], self.in_proj_a(x)[0], self.in_proj_b(x)[0]
        # Qwen3-Next: what belongs to a key head lies together.
        per_key = self._heads // self._key_heads
        values = per_key * self._value_dim
        parts = self.in_proj_qkvz(x)[0].unflatten(1, (self._key_heads, -1))
        query, key, value, gate = parts.split([self._key_dim, self._key_dim, values, values], dim=2)
        b, a = self.in_proj_ba(x)[0].unflatten(1, (self._key_heads, -1)).split([per_key, per_key], dim=2)
        mixed = torch.cat([query.flatten(1), key.flatten(1), value.flatten(1)], dim=1)
        return mixed, gate.flatten(1), a.flatten(1), b.flatten(1)


def keeps_state(module: nn.Module) -> bool:
    """Return whether a module is a recurrent layer of a kind that is known here."""
    return all(hasattr(module, name) for name in _OF_GATED_DELTA)


def recurrent_layer_of(theirs: Any, kernels: Kernels) -> GatedDeltaNet:
    """Return our layer in the place of one that keeps a state.

    Raises
    ------
    ValueError
        If it computes something else than ours: that is tried.
    """
    if getattr(theirs, "activation", "silu") not in ("silu", "swish"):
        raise ValueError(f"the activation {theirs.activation} of its linear attention is not supported")
    wide = copy.deepcopy(theirs).float()
    x = torch.randn(1, _TRIED_ROWS, wide.out_proj.out_features, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(_TRIED_ROWS)
    step = RecordingCache().step(rows, rows, kernels)
    with torch.inference_mode(), get_step_ctx_manager().context(step):
        expected, got = wide(x), GatedDeltaNet(wide, kernels)(x)
    off = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not off <= _TOLERANCE:
        raise ValueError(f"its linear attention does more than ours: outputs are off by {off:.1%}")
    return GatedDeltaNet(theirs, kernels)


def _floats(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.float32).contiguous()
