"""Recurrent layers of ``transformers`` on the C++ engine's kernels, for CPUs."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.pytorch.cpu_kernels import Kernels, Matrix
from lmdeploy.pytorch.paged import StateShape
from lmdeploy.pytorch.recording import RecordingCache
from lmdeploy.pytorch.step_context import get_step_ctx_manager

_TRIED_TOKENS, _TOLERANCE = 24, 1e-3  # of the largest output


class RecurrentLayer(nn.Module):
    """Base of recurrent layers: each replaces one of ``transformers``, whose projections it keeps.

    ``hf_module``: the layer.
    """

    given: ClassVar[dict[str, Any]] = {}  # what modelling code passes besides rows, and may be None
    _shape: StateShape

    def __init__(self, hf_module: Any, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels  # what computes
        self.layer_idx = int(hf_module.layer_idx)

    def _keep_conv(self, conv: nn.Conv1d) -> None:
        self._conv = _floats(conv.weight.squeeze(1))
        self._conv_bias = None if conv.bias is None else _floats(conv.bias)

    def _state(self) -> Any:
        """Return the states of the step's sequences."""
        return get_step_ctx_manager().current_context().kv_caches.state_of(self.layer_idx, self._shape)


class Mamba2(RecurrentLayer):
    """Mamba-2 (Dao & Gu, 2024)."""

    def __init__(self, hf_module: Any, kernels: Kernels) -> None:
        super().__init__(hf_module, kernels)
        self._heads, self._head_dim = int(hf_module.num_heads), int(hf_module.head_dim)
        self._groups, self._state_size = int(hf_module.n_groups), int(hf_module.ssm_state_size)
        self.in_proj, self.out_proj = hf_module.in_proj, hf_module.out_proj
        self._keep_conv(hf_module.conv1d)
        self._a_log, self._dt_bias = _floats(hf_module.A_log), _floats(hf_module.dt_bias)
        self._skip = _floats(hf_module.D)
        self._limits = (float(hf_module.time_step_limit[0]), float(hf_module.time_step_limit[1]))
        # Falcon-H1 has factors, and a norm only where its config says so.
        self._input_factor = float(getattr(hf_module, "ssm_in_multiplier", 1.0))
        factors = getattr(hf_module, "mup_vector", None)
        self._factors = None if factors is None else _floats(factors).flatten()
        norm = hf_module.norm if getattr(hf_module, "mamba_rms_norm", True) else None
        self._norm = None if norm is None else _floats(norm.weight).view(self._heads, self._head_dim)
        self._norms_first = bool(getattr(norm, "norm_before_gate", False))
        self._norm_eps = 0.0 if norm is None else float(norm.variance_epsilon)
        self._ones = torch.ones(self._heads * self._head_dim // self._groups)
        channels, kernel = self._conv.shape
        self._shape = StateShape(kernel - 1, channels, self._heads, self._state_size, self._head_dim)

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return ``[1, rows, hidden]`` for ``[1, rows, hidden]``, and advance the states of the step's sequences."""
        state = self._state()
        projected = self.in_proj(hidden_states * self._input_factor)[0].float()
        if self._factors is not None:
            projected = projected * self._factors
        values, keys = self._heads * self._head_dim, self._groups * self._state_size
        gate, mixed, dt = projected.split([values, values + 2 * keys, self._heads], dim=1)
        mixed = self._kernels.causal_conv(state.conv, self._conv, self._conv_bias, mixed)
        x, b, c = mixed.split([values, keys, keys], dim=1)
        decay, step = self._kernels.mamba_gates(self._a_log, self._dt_bias, self._limits, dt)
        out = self._kernels.recurrence(
            state.matrices,
            decay,
            step,
            c.unflatten(1, (self._groups, self._state_size)),
            b.unflatten(1, (self._groups, self._state_size)),
            x.unflatten(1, (self._heads, self._head_dim)),
            skip=self._skip,
        )
        gate = gate.unflatten(1, (self._heads, self._head_dim))
        if not self._norms_first:
            self._kernels.silu_gate(gate, out)
        if self._norm is not None:
            self._kernels.rms_norm_heads(self._ones, self._norm_eps, out.view(len(out), self._groups, -1))
            out *= self._norm
        if self._norms_first:
            self._kernels.silu_gate(gate, out)
        result: torch.Tensor = self.out_proj(out.reshape(1, len(out), values))
        return result


class Mamba(RecurrentLayer):
    """Mamba (Gu & Dao, 2023): each channel is a head with one value, whose states forget each at its own rate."""

    def __init__(self, hf_module: Any, kernels: Kernels) -> None:
        super().__init__(hf_module, kernels)
        self._size, self._rank = int(hf_module.ssm_state_size), int(hf_module.time_step_rank)
        for name in ("in_proj", "x_proj", "dt_proj", "out_proj"):
            self.add_module(name, getattr(hf_module, name))
        # Jamba and Falcon Mamba have norms.
        norms = [getattr(hf_module, f"{name}_layernorm", nn.Identity()) for name in ("dt", "b", "c")]
        self._norms = nn.ModuleList(norms)
        self._keep_conv(hf_module.conv1d)
        self._a, self._skip = -torch.exp(_floats(hf_module.A_log)), _floats(hf_module.D)
        channels, kernel = self._conv.shape
        self._shape = StateShape(kernel - 1, channels, channels, self._size, 1)

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return ``[1, rows, hidden]`` for ``[1, rows, hidden]``, and advance the states of the step's sequences."""
        state = self._state()
        mixed, gate = self.in_proj(hidden_states)[0].float().chunk(2, dim=1)
        mixed = self._kernels.causal_conv(state.conv, self._conv, self._conv_bias, mixed)
        parts = self.x_proj(mixed[None]).split([self._rank, self._size, self._size], dim=2)
        dt, b, c = (norm(part) for norm, part in zip(self._norms, parts, strict=True))
        step = functional.softplus(self.dt_proj(dt)[0].float())
        decay = torch.exp(step[:, :, None] * self._a)
        out = self._kernels.recurrence(
            state.matrices, decay.flatten(1), step, c[0, :, None], b[0, :, None], mixed[:, :, None],
            skip=self._skip,
        )  # fmt: skip
        self._kernels.silu_gate(gate[:, :, None], out)
        result: torch.Tensor = self.out_proj(out.view(1, *gate.shape))
        return result


class CompressedProjection(RecurrentLayer):
    """Queries, keys and values of compressed convolutional attention (Zyphra, 2025; arXiv 2510.04476).

    Queries and keys are convolved channel by channel, then within each head; half of a value is of the token before.
    """

    given: ClassVar[dict[str, Any]] = {"past_key_values": None}

    def __init__(self, hf_module: Any, kernels: Kernels) -> None:
        super().__init__(hf_module, kernels)
        for name in ("q_proj", "k_proj", "v_proj_current", "v_proj_delayed"):
            self.add_module(name, getattr(hf_module, name))
        self._heads, self._key_heads = int(hf_module.num_attention_heads), int(hf_module.num_key_value_heads)
        self._size = int(hf_module.head_dim)
        taps = _floats(hf_module.conv_qk_depthwise.weight.squeeze(1))
        grouped = _floats(hf_module.conv_qk_grouped.weight)
        channels, count = taps.shape
        self._copies = grouped.shape[2]
        # One convolution: the results of the first that the second looks at, side by side, and the delayed values. A
        # value of no token is the bias.
        delayed = hf_module.v_proj_delayed
        kernel = max(self._copies + count - 1, 2)
        rows = [functional.pad(taps, (kernel - count - delay, delay)) for delay in range(self._copies)]
        before = torch.zeros(delayed.out_features, kernel)
        before[:, kernel - 2] = 1
        self._conv = torch.cat([*rows, before])
        bias = torch.zeros(channels) if hf_module.conv_qk_depthwise.bias is None else hf_module.conv_qk_depthwise.bias
        self._value_bias = torch.zeros(len(before)) if delayed.bias is None else _floats(delayed.bias)
        self._conv_bias = torch.cat([_floats(bias).repeat(self._copies), self._value_bias])
        # By head, the latest first, as the copies are.
        matrices = grouped.unflatten(0, (-1, self._size)).flip(3).transpose(2, 3).flatten(2)
        last = hf_module.conv_qk_grouped.bias
        biases = [None] * len(matrices) if last is None else last.view(len(matrices), -1)
        self._mixes = [Matrix(matrix, bias) for matrix, bias in zip(matrices, biases, strict=True)]
        self._shape = StateShape(kernel - 1, len(self._conv), 0, 0, 0)

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values ``[1, rows, heads, size]``, and advance the states of the sequences."""
        state = self._state()
        query, key, value, delayed = (
            linear(hidden_states)[0].float()
            for linear in (self.q_proj, self.k_proj, self.v_proj_current, self.v_proj_delayed)
        )
        given = torch.cat([*[query, key] * self._copies, delayed - self._value_bias], dim=1)
        convolved = self._kernels.causal_conv(state.conv, self._conv, self._conv_bias, given, has_silu=False)
        copies = convolved[:, : -delayed.shape[1]].unflatten(1, (self._copies, -1, self._size))
        mixed = [
            self._kernels.linear(mix.native, mix.out_features, copies[:, :, head].flatten(1))
            for head, mix in enumerate(self._mixes)
        ]
        query, key = query.unflatten(1, (self._key_heads, -1, self._size)), key.unflatten(1, (-1, 1, self._size))
        residual = (query + key) * 0.5
        queries = torch.stack(mixed[: self._heads], 1) + residual.flatten(1, 2)
        keys = torch.stack(mixed[self._heads :], 1) + residual.mean(2)
        values = torch.cat([value, convolved[:, -delayed.shape[1] :]], dim=1).unflatten(1, (-1, self._size))
        return queries[None], keys[None], values[None]


# By what the modelling code of a layer has.
_KINDS: tuple[tuple[type[RecurrentLayer], tuple[str, ...]], ...] = (
    (Mamba2, ("A_log", "D", "conv1d", "dt_bias", "in_proj", "n_groups", "ssm_state_size", "out_proj")),
    (Mamba, ("A_log", "D", "conv1d", "in_proj", "x_proj", "dt_proj", "ssm_state_size", "time_step_rank", "out_proj")),
    (CompressedProjection, ("conv_qk_depthwise", "conv_qk_grouped", "q_proj", "v_proj_current", "v_proj_delayed")),
)


_PROJECTIONS = ("in_proj", "q_proj")  # of a layer's input


def keeps_state(module: nn.Module) -> bool:
    """Return whether a module is a recurrent layer of a kind that is known here."""
    return _kind_of(module) is not None


def recurrent_layer_of(hf_module: Any, kernels: Kernels) -> nn.Module:
    """Return our layer in the place of one that keeps a state.

    Raises `ValueError` if it computes something else than ours: that is tried.
    """
    kind = _kind_of(hf_module)
    if kind is None or getattr(hf_module, "activation", "silu") not in ("silu", "swish"):
        raise ValueError(f"the activation {hf_module.activation} of its recurrent layers is not supported")
    exact = copy.deepcopy(hf_module).float()
    width = next(getattr(exact, name).in_features for name in _PROJECTIONS if hasattr(exact, name))
    x = torch.randn(1, _TRIED_TOKENS, width, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(_TRIED_TOKENS)
    step = RecordingCache().step(tokens, tokens, kernels)
    with torch.inference_mode(), get_step_ctx_manager().context(step):
        expected, got = _parts(exact(x, **kind.given)), _parts(kind(exact, kernels)(x))
    off = max(
        float((native - reference).abs().max() / reference.abs().max().clamp_min(1e-30))
        for native, reference in zip(got, expected, strict=False)  # some return attention weights too
    )
    if not off <= _TOLERANCE:
        raise ValueError(f"its recurrent layers do more than ours: outputs are off by {off:.1%}")
    return kind(hf_module, kernels)


def _kind_of(module: nn.Module) -> type[RecurrentLayer] | None:
    return next((kind for kind, names in _KINDS if all(hasattr(module, name) for name in names)), None)


def _parts(output: torch.Tensor | tuple[torch.Tensor | None, ...]) -> list[torch.Tensor]:
    parts = (output,) if isinstance(output, torch.Tensor) else output
    return [part for part in parts if part is not None]


def _floats(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.float32).contiguous()
