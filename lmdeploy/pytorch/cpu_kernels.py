"""The C++ engine's kernels for CPUs, on tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

import lmdeploy._turbomind as _turbomind

if TYPE_CHECKING:
    import numpy as np

    Ints = np.ndarray[Any, np.dtype[np.int32]]

_MAMBA_GATES = 1  # RecurrenceGate::kMamba

_TILE_OUTPUTS = 16  # kTileOutputs
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a type of weights; raise `ValueError` if the kernels do not know it."""
    if dtype not in _NAMES:
        raise ValueError(f"weights must be float32, bfloat16 or float16, got {dtype}")
    return _NAMES[dtype]


class Kernels:
    """The kernels, on a pool of threads. One thread uses them at a time.

    ``threads``: how many compute, the caller's included.
    """

    def __init__(self, threads: int) -> None:
        self.native = _turbomind.CpuKernels(threads)

    def linear(self, weight: Any, out_features: int, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b`` as float32; x ``[..., in_features]``."""
        x = _dense(x)
        y = torch.empty((*x.shape[:-1], out_features), dtype=torch.float32)
        rows = x.numel() // x.shape[-1]
        if rows:
            self.native.linear(weight, x.data_ptr(), rows, y.data_ptr())
        return y

    def rms_norm(self, weight: torch.Tensor, eps: float, x: torch.Tensor) -> torch.Tensor:
        """Return ``x / sqrt(mean(x^2) + eps) * weight`` as float32; x ``[..., size]``, weight float32."""
        x = _dense(x)
        y = torch.empty_like(x)
        size = x.shape[-1]
        self.native.rms_norm(weight.data_ptr(), eps, x.data_ptr(), x.numel() // size, size, y.data_ptr())
        return y

    def embed(self, table: Any, width: int, tokens: torch.Tensor) -> torch.Tensor:
        """Return rows of an embedding table as float32; tokens ``[...]``."""
        tokens = tokens.to(torch.int32).contiguous()
        y = torch.empty((*tokens.shape, width), dtype=torch.float32)
        self.native.embed(table, tokens.data_ptr(), tokens.numel(), y.data_ptr())
        return y

    def set_spans(self, spans: Ints, blocks: Ints, block_len: int) -> None:
        """Say which rows the calls of ``attention`` have; ``blocks`` stays as it is until the step has ended."""
        self.native.set_spans(spans, blocks, block_len)

    def attention(
        self,
        cache: Any,
        # ``[rows, heads, size]``; queries are multiplied by the scale of q.k already. The last axis is dense
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        # As in backend_cpp/kernels/paged_attention.h; 0 and None: none
        softcap: float = 0.0,
        window: int = 0,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write keys and values to the cache and attend; all float32.

        Returns ``[rows, heads, value size]``.
        """
        out = torch.empty((query.shape[0], query.shape[1], value.shape[2]), dtype=torch.float32)
        self.native.attention(
            cache, _heads(query), _heads(key), _heads(value), out.data_ptr(), softcap, window,
            0 if sinks is None else sinks.data_ptr(), 0 if alibi_slopes is None else alibi_slopes.data_ptr(),
        )  # fmt: skip
        return out

    def set_states(self, spans: Ints, blocks: Ints, page_count: int) -> None:
        """Say which rows recurrent layers have; the pages of a sequence's state follow its blocks."""
        self.native.set_states(spans, blocks, page_count)

    def causal_conv(
        self,
        state: Any,  # a `_turbomind.LayerState`, ``[kernel - 1, channels]`` a sequence
        # float32 ``[channels, kernel]`` and ``[channels]``
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        x: torch.Tensor,  # float32 ``[rows, channels]``
        *,
        has_silu: bool = True,
    ) -> torch.Tensor:
        """Convolve each channel with the inputs before it, then SiLU where asked; advances the state.

        Returns float32 ``[rows, channels]``.
        """
        x = _dense(x)
        y = torch.empty_like(x)
        shift = 0 if bias is None else bias.data_ptr()
        params = (state, *weight.shape, weight.data_ptr(), shift, has_silu)
        self.native.causal_conv(params, _rows(x), len(x), _rows(y))
        return y

    def mamba_gates(
        self, a_log: torch.Tensor, dt_bias: torch.Tensor, limits: tuple[float, float], dt: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``exp(-exp(a_log) step)`` and ``step``: ``softplus(dt + dt_bias)``, limited; ``[rows, heads]``."""
        dt = _dense(dt)
        decay, step = torch.empty_like(dt), torch.empty_like(dt)
        params = (_MAMBA_GATES, dt.shape[1], 1, a_log.data_ptr(), dt_bias.data_ptr(), *limits, 0.0)  # no bound
        self.native.recurrence_gates(params, _rows(dt), (0, 0), len(dt), decay.data_ptr(), step.data_ptr())
        return decay, step

    def recurrence(
        self,
        state: Any,  # a `_turbomind.LayerState`, ``[heads, key size, value size]`` a sequence
        # float32 ``[rows, heads]``, or ``[rows, heads * key size]``: one for each channel of the key
        decay: torch.Tensor,
        beta: torch.Tensor,  # float32 ``[rows, heads]``
        # float32 ``[rows, key heads, key size]``, normalized and scaled
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,  # float32 ``[rows, heads, value size]``
        skip: torch.Tensor,  # float32 ``[heads]``: what of a value is added to its output
    ) -> torch.Tensor:
        """Apply the rule of Mamba-2, and advance the state.

        The formulas: backend_cpp/kernels/recurrence.h. Returns float32 ``[rows, heads, value size]``.
        """
        out = torch.empty(value.shape, dtype=torch.float32)
        params = (
            state, value.shape[1], *key.shape[1:], value.shape[2], False,
            decay.data_ptr(), decay.shape[1] // beta.shape[1], beta.data_ptr(), skip.data_ptr(),
        )  # fmt: skip
        self.native.recurrence(params, _heads(query), _heads(key), _heads(value), out.data_ptr())
        return out

    def rms_norm_heads(self, weight: torch.Tensor, eps: float, heads: torch.Tensor) -> None:
        """Normalize each head in place, with one weight ``[size]``; heads float32 ``[rows, heads, size]``."""
        self.native.rms_norm_heads(weight.data_ptr(), eps, _heads(heads))

    def rope(
        self, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, is_interleaved: bool
    ) -> None:
        """Rotate the first channels of each head in place.

        ``query``, ``key``: float32 ``[rows, heads, size]``; the last axis is dense. ``cos``, ``sin``: float32 ``[rows,
        pairs]``, of neighbours if ``is_interleaved``, else of channels ``pairs`` apart; their last axis is dense.
        """
        self.native.rope(_rows(cos), _rows(sin), cos.shape[1], is_interleaved, _heads(query), _heads(key))

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return ``silu(gate) * up`` as float32 ``[..., size]``; gate_up ``[..., 2 * size]``."""
        gate_up = _dense(gate_up)
        size = gate_up.shape[-1] // 2
        y = torch.empty((*gate_up.shape[:-1], size), dtype=torch.float32)
        if y.numel():
            self.native.silu_and_mul(gate_up.data_ptr(), y.numel() // size, size, y.data_ptr())
        return y

    def silu_gate(self, gate: torch.Tensor, x: torch.Tensor) -> None:
        """Multiply ``x`` by ``silu(gate)`` in place; both float32 ``[rows, heads, size]``."""
        self.native.silu_gate(_heads(gate), _heads(x))


@functools.cache
def kernels(threads: int = 0) -> Kernels:
    """Return this process's kernels; the first call says with how many threads (0: as many as there are cores)."""
    return Kernels(threads)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as dense float32."""
    if x.dtype != torch.float32:
        x = x.to(torch.float32)
    return x if x.is_contiguous() else x.contiguous()


def _heads(tensor: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    rows, heads, size = tensor.shape
    row_stride, head_stride, _ = tensor.stride()
    return tensor.data_ptr(), rows, row_stride, heads, head_stride, size


def _rows(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.stride(0)


class Matrix:
    """A weight ``[out_features, in_features]`` of 32 or 16 bits as the kernels take it.

    ``bias``: ``[out_features]`` or None. ``is_tiled``: a copy in tiles (backend_cpp/kernels/packed_weight.h), which are
    multiplied faster; else the weight itself, which others can share and whose rows `Kernels.embed` can look up.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, is_tiled: bool = True) -> None:
        self.out_features, self.in_features = weight.shape
        self._is_tiled = is_tiled
        weight = weight.detach().contiguous()
        self._stored = _tiles_of(weight) if is_tiled else weight
        self.bias = None if bias is None else bias.detach().to(torch.float32).contiguous()
        self.native = _turbomind.LinearWeight(
            self._stored.data_ptr(), type_name(weight.dtype), self.out_features, self.in_features,
            0 if self.bias is None else self.bias.data_ptr(), is_tiled,
        )  # fmt: skip

    def numbers(self) -> torch.Tensor:
        """Return the weight ``[out_features, in_features]``."""
        if not self._is_tiled:
            return self._stored
        rows = self._stored.transpose(1, 2).reshape(-1, self._stored.shape[1] * self._stored.shape[3])
        return rows[: self.out_features, : self.in_features]


def _tiles_of(weight: torch.Tensor) -> torch.Tensor:
    """Return a dense weight as tiles ``[tiles, inputs / unit, 16, unit]``: units are pairs of bfloat16, or numbers."""
    unit = 2 if weight.dtype == torch.bfloat16 else 1
    padding = (0, -weight.shape[1] % unit, 0, -weight.shape[0] % _TILE_OUTPUTS)
    padded = functional.pad(weight, padding) if any(padding) else weight
    units = padded.view(torch.int32) if unit == 2 else padded  # which PyTorch moves faster than pairs
    tiles = units.view(-1, _TILE_OUTPUTS, units.shape[1]).transpose(1, 2).contiguous()
    return tiles.view(weight.dtype).unflatten(2, (_TILE_OUTPUTS, unit))
