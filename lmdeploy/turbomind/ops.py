"""The engine's CPU kernels as ``torch.ops.turbomind.*``, for tests and the Python runtime.

Importing this module registers them. Tensors are contiguous and on the CPU; wrong shapes and types raise
``ValueError``. Each kernel's arithmetic is described in its header in ``backend_cpp/kernels``.
"""

from dataclasses import dataclass

import torch

import lmdeploy._turbomind as _turbomind
from lmdeploy.turbomind.spec_problems import ACTIVATIONS, GROUP_SCORES, ROUTER_SCORES

Span = tuple[int, int, int, list[int]]
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # in the order of DType in kernels/types.h


def _check(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int | None, ...]) -> None:
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} must be {' or '.join(map(str, dtypes))}, got {tensor.dtype}")
    fits = len(shape) == tensor.dim() and all(
        want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"{name} must be a contiguous CPU tensor of shape {shape}, got {tuple(tensor.shape)}")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``x @ weight.T + bias``.

    Parameters
    ----------
    x
        ``[rows, in_features]`` float32.
    weight
        ``[out_features, in_features]`` float32, bfloat16 or float16.
    bias
        ``[out_features]`` float32.
    """
    _check("x", x, (torch.float32,), (None, None))
    _check("weight", weight, _FLOATS, (None, x.shape[1]))
    if bias is not None:
        _check("bias", bias, (torch.float32,), (weight.shape[0],))
    y = torch.empty(x.shape[0], weight.shape[0])
    _turbomind.linear(
        x.data_ptr(),
        x.shape[0],
        weight.data_ptr(),
        _FLOATS.index(weight.dtype),
        weight.shape[0],
        weight.shape[1],
        0 if bias is None else bias.data_ptr(),
        y.data_ptr(),
        False,
    )
    return y


def rounded_linear(x: torch.Tensor, weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Return ``x @ weight.T`` with the weight rounded to ``bits`` bits, and x to 8, for each group of inputs.

    Parameters
    ----------
    x
        ``[rows, in_features]`` float32.
    weight
        ``[out_features, in_features]`` float32.
    bits
        8 or 4.
    group
        Inputs that share a scale, a multiple of 8.
    """
    _check("x", x, (torch.float32,), (None, None))
    _check("weight", weight, (torch.float32,), (None, x.shape[1]))
    if bits not in (4, 8) or group < 8 or group % 8:
        raise ValueError(f"bits must be 4 or 8 and group a multiple of 8, got {bits} and {group}")
    y = torch.empty(x.shape[0], weight.shape[0])
    _turbomind.rounded_linear(
        x.data_ptr(), x.shape[0], weight.data_ptr(), bits, group, weight.shape[0], weight.shape[1], y.data_ptr()
    )
    return y


def scaled_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    block_outputs: int,
    block_inputs: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``x @ (weight * scales).T + bias``.

    Parameters
    ----------
    x
        ``[rows, in_features]`` float32.
    weight
        ``[out_features, in_features]`` int8 or float8_e4m3fn.
    scales
        ``[out_features / block_outputs, in_features / block_inputs]``, rounded up, float32: one for each block.
    block_outputs, block_inputs
        Neighbours that share a scale; with int8, ``block_inputs`` is at least ``in_features``.
    bias
        ``[out_features]`` float32.
    """
    _check("x", x, (torch.float32,), (None, None))
    _check("weight", weight, (torch.int8, torch.float8_e4m3fn), (None, x.shape[1]))
    if block_outputs < 1 or block_inputs < 1:
        raise ValueError(f"blocks must have outputs and inputs, got {block_outputs} x {block_inputs}")
    out_features, in_features = weight.shape
    _check("scales", scales, (torch.float32,), (-(-out_features // block_outputs), -(-in_features // block_inputs)))
    if bias is not None:
        _check("bias", bias, (torch.float32,), (out_features,))
    y = torch.empty(x.shape[0], out_features)
    _turbomind.scaled_linear(
        x.data_ptr(),
        x.shape[0],
        weight.data_ptr(),
        weight.dtype == torch.float8_e4m3fn,
        scales.data_ptr(),
        block_outputs,
        block_inputs,
        out_features,
        in_features,
        _address(bias),
        y.data_ptr(),
    )
    return y


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return RMSNorm of the rows of ``x`` ``[rows, size]``, times ``weight`` ``[size]``; float32."""
    _check("x", x, (torch.float32,), (None, None))
    _check("weight", weight, (torch.float32,), (x.shape[1],))
    y = torch.empty_like(x)
    _turbomind.norm(x.data_ptr(), False, weight.data_ptr(), 0, eps, x.shape[0], x.shape[1], y.data_ptr())
    return y


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Return LayerNorm of the rows of ``x`` ``[rows, size]``, times ``weight`` plus ``bias`` ``[size]``; float32."""
    _check("x", x, (torch.float32,), (None, None))
    _check("weight", weight, (torch.float32,), (x.shape[1],))
    if bias is not None:
        _check("bias", bias, (torch.float32,), (x.shape[1],))
    y = torch.empty_like(x)
    bias_pointer = 0 if bias is None else bias.data_ptr()
    _turbomind.norm(x.data_ptr(), True, weight.data_ptr(), bias_pointer, eps, x.shape[0], x.shape[1], y.data_ptr())
    return y


def activate(x: torch.Tensor, activation: str, is_gated: bool) -> torch.Tensor:
    """Return ``act(x)``, or, gated, ``act(gate) * up``, where gate is the first half of each row.

    Parameters
    ----------
    x
        ``[rows, size]`` float32, or ``[rows, 2 size]``.
    activation
        One of :data:`lmdeploy.turbomind.spec_problems.ACTIVATIONS`.
    is_gated
        Whether x holds gate and up.
    """
    _check("x", x, (torch.float32,), (None, None))
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if is_gated and x.shape[1] % 2:
        raise ValueError(f"gated x must have an even number of columns, got {x.shape[1]}")
    y = torch.empty(x.shape[0], x.shape[1] // 2 if is_gated else x.shape[1])
    _turbomind.activate(x.data_ptr(), ACTIVATIONS.index(activation), is_gated, y.shape[0], y.shape[1], y.data_ptr())
    return y


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_interleaved: bool, factors: torch.Tensor | None
) -> torch.Tensor:
    """Return the heads ``x`` ``[rows, heads, head_dim]`` rotated, times ``factors`` ``[rows]``; float32.

    ``cos`` and ``sin`` are ``[rows, pairs]``: the first ``2 pairs`` dimensions are rotated.
    """
    _check("x", x, (torch.float32,), (None, None, None))
    rows, heads, head_dim = x.shape
    _check("cos", cos, (torch.float32,), (rows, None))
    _check("sin", sin, (torch.float32,), (rows, cos.shape[1]))
    if factors is not None:
        _check("factors", factors, (torch.float32,), (rows,))
    if 2 * cos.shape[1] > head_dim:
        raise ValueError(f"cos must have at most head_dim / 2 = {head_dim / 2:g} columns, got {cos.shape[1]}")
    y = x.clone()
    factors_pointer = 0 if factors is None else factors.data_ptr()
    _turbomind.rope(
        y.data_ptr(), cos.data_ptr(), sin.data_ptr(), cos.shape[1], is_interleaved, rows, heads, head_dim,
        factors_pointer,
    )  # fmt: skip
    return y


def scale_and_cap(x: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
    """Return ``softcap tanh(scale x / softcap)``, or ``scale x`` where softcap is 0; x is ``[rows, size]`` float32."""
    _check("x", x, (torch.float32,), (None, None))
    y = x.clone()
    _turbomind.scale_and_cap(scale, softcap, x.shape[0], x.shape[1], y.data_ptr())
    return y


def head_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return each head's own product: ``x`` ``[rows, heads, in]`` float32, ``weight`` ``[heads, out, in]``.

    Returns ``[rows, heads, out]`` float32; the weight is float32, bfloat16 or float16.
    """
    _check("x", x, (torch.float32,), (None, None, None))
    rows, heads, in_features = x.shape
    _check("weight", weight, _FLOATS, (heads, None, in_features))
    y = torch.empty(rows, heads, weight.shape[1])
    dtype = _FLOATS.index(weight.dtype)
    _turbomind.head_linear(
        x.data_ptr(), rows, heads, weight.shape[1], in_features, weight.data_ptr(), dtype, y.data_ptr()
    )
    return y


@dataclass(frozen=True)
class Router:
    """How rows choose their experts; fields as ``RouterParams`` in ``backend_cpp/kernels/moe.h``."""

    num_experts: int
    top_k: int
    score: str = "softmax"
    mixer_jitter: float = 0.0
    num_groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    choice_bias: torch.Tensor | None = None
    normalize: bool = False
    scale: float = 1.0

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return experts (int32) and weights (float32), both ``[rows, top_k]``, of ``logits`` ``[rows, experts]``."""
        _check("logits", logits, (torch.float32,), (None, self.num_experts))
        if self.choice_bias is not None:
            _check("choice_bias", self.choice_bias, (torch.float32,), (self.num_experts,))
        experts = torch.empty(logits.shape[0], self.top_k, dtype=torch.int32)
        weights = torch.empty(logits.shape[0], self.top_k)
        _turbomind.route(
            logits.data_ptr(),
            logits.shape[0],
            self.num_experts,
            self.top_k,
            ROUTER_SCORES.index(self.score),
            self.mixer_jitter,
            self.num_groups,
            self.top_groups,
            GROUP_SCORES.index(self.group_score),
            0 if self.choice_bias is None else self.choice_bias.data_ptr(),
            self.normalize,
            self.scale,
            experts.data_ptr(),
            weights.data_ptr(),
        )
        return experts, weights


def experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    activation: str = "silu",
    bits: int = 0,
    group: int = 32,
) -> torch.Tensor:
    """Return the weighted sum of what each row's experts make of it.

    Parameters
    ----------
    x
        ``[rows, hidden]`` float32.
    gate_up, down
        ``[experts, 2 size, hidden]`` and ``[experts, hidden, size]`` float32; an expert is a gated MLP.
    chosen, weights
        ``[rows, top_k]`` int32 and float32, as a :class:`Router` gives them.
    activation
        One of :data:`lmdeploy.turbomind.spec_problems.ACTIVATIONS`.
    bits, group
        8 or 4 bits round the weights, with a scale for every ``group`` inputs; 0 keeps them.
    """
    _check("x", x, (torch.float32,), (None, None))
    rows, hidden = x.shape
    _check("gate_up", gate_up, (torch.float32,), (None, None, hidden))
    count, size = gate_up.shape[0], gate_up.shape[1] // 2
    _check("down", down, (torch.float32,), (count, hidden, size))
    _check("chosen", chosen, (torch.int32,), (rows, None))
    _check("weights", weights, (torch.float32,), (rows, chosen.shape[1]))
    if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < count:
        raise ValueError(f"chosen must lie in [0, {count}), got {int(chosen.min())} to {int(chosen.max())}")
    y = torch.zeros_like(x)
    _turbomind.experts(
        x.data_ptr(),
        rows,
        gate_up.data_ptr(),
        down.data_ptr(),
        count,
        size,
        hidden,
        bits,
        group,
        chosen.shape[1],
        ACTIVATIONS.index(activation),
        chosen.data_ptr(),
        weights.data_ptr(),
        y.data_ptr(),
    )
    return y


for _kernel in (linear, rounded_linear, scaled_linear, rms_norm, layer_norm, activate, rope, scale_and_cap):
    torch.library.custom_op(f"turbomind::{_kernel.__name__}", _kernel, mutates_args=())


@dataclass(frozen=True)
class HeadSizes:
    """Query heads, key/value heads, and the length of a key and of a value."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class AttentionRule:
    """What a score goes through, as in ``kernels/paged_attention.h``.

    Attributes
    ----------
    scale
        Of the product of query and key.
    softcap, window
        0: none.
    alibi_slopes, sinks
        ``[num_heads]`` float32.
    """

    scale: float
    softcap: float = 0.0
    window: int = 0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


class PagedAttention:
    """One layer's paged cache and the attention over it.

    Parameters
    ----------
    blocks
        Cache blocks.
    sizes
        Of the heads.
    block_len
        Tokens in a block: a multiple of 16 that divides 512.
    bits
        Of a cached value: 32 or 16 (float32, bfloat16), 8 or 4 (rounded for each head and token).
    rule
        Of the scores.
    """

    def __init__(self, blocks: int, sizes: HeadSizes, block_len: int, bits: int, rule: AttentionRule) -> None:
        if bits not in (32, 16, 8, 4):
            raise ValueError(f"bits must be 32, 16, 8 or 4, got {bits}")
        self._sizes = sizes
        self._block_len = block_len
        self._bits = bits
        self._rule = rule
        block_bytes = _turbomind.cache_block_bytes(bits, sizes.num_kv_heads, sizes.key_dim, sizes.value_dim, block_len)
        # Poison, not zeros: what was never written must never be read.
        self._pool = torch.full((-(-blocks * block_bytes // 4),), float("nan"))

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: list[Span]) -> torch.Tensor:
        """Write the cache and attend.

        Parameters
        ----------
        q, k, v
            ``[rows, num_heads, key_dim]``, ``[rows, num_kv_heads, key_dim]`` and ``[rows, num_kv_heads, value_dim]``,
            float32.
        spans
            For each sequence: first row, rows, position of the first row, block ids.

        Returns
        -------
        torch.Tensor
            ``[rows, num_heads, value_dim]`` float32.
        """
        sizes, rule, rows = self._sizes, self._rule, q.shape[0]
        _check("q", q, (torch.float32,), (None, sizes.num_heads, sizes.key_dim))
        _check("k", k, (torch.float32,), (rows, sizes.num_kv_heads, sizes.key_dim))
        _check("v", v, (torch.float32,), (rows, sizes.num_kv_heads, sizes.value_dim))
        scaled = q * rule.scale
        out = torch.empty(rows, sizes.num_heads, sizes.value_dim)
        _turbomind.attention(
            scaled.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            self._pool.data_ptr(),
            self._bits,
            (sizes.num_heads, sizes.num_kv_heads, sizes.key_dim, sizes.value_dim, self._block_len),
            spans,
            rule.softcap,
            rule.window,
            _address(rule.alibi_slopes),
            _address(rule.sinks),
            out.data_ptr(),
        )
        return out


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
