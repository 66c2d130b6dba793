"""The engine's CPU kernels as ``torch.ops.turbomind.*``, for tests and the Python runtime.

Importing this module registers them. Tensors are contiguous and on the CPU; wrong shapes and types raise
``ValueError``. Each kernel's arithmetic is described in its header in ``backend_cpp/kernels``.
"""

import torch

import lmdeploy._turbomind as _turbomind

Span = tuple[int, int, int, list[int]]
_FLOATS = (torch.float32, torch.bfloat16)


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
        ``[out_features, in_features]`` float32 or bfloat16.
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
        weight.dtype == torch.bfloat16,
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


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return RMSNorm of the rows of ``x`` ``[rows, size]``, times ``weight`` ``[size]``; float32."""
    _check("x", x, (torch.float32,), (None, None))
    _check("weight", weight, (torch.float32,), (x.shape[1],))
    y = torch.empty_like(x)
    _turbomind.rms_norm(x.data_ptr(), weight.data_ptr(), eps, x.shape[0], x.shape[1], y.data_ptr())
    return y


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return ``silu(gate) * up`` for ``gate_up`` ``[rows, 2 size]`` float32, gate in the first half of a row."""
    _check("gate_up", gate_up, (torch.float32,), (None, None))
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must have an even number of columns, got {gate_up.shape[1]}")
    y = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2)
    _turbomind.silu_and_mul(gate_up.data_ptr(), gate_up.shape[0], y.shape[1], y.data_ptr())
    return y


for _kernel in (linear, rounded_linear, rms_norm, silu_and_mul):
    torch.library.custom_op(f"turbomind::{_kernel.__name__}", _kernel, mutates_args=())


class PagedAttention:
    """One layer's paged cache and the attention over it.

    Parameters
    ----------
    blocks
        Cache blocks.
    num_heads, num_kv_heads, head_dim, block_len
        Sizes; ``block_len`` is a multiple of 16 that divides 512.
    bits
        Of a cached value: 32 or 16 (float32, bfloat16), 8 or 4 (rounded for each head and token).
    """

    def __init__(
        self, blocks: int, num_heads: int, num_kv_heads: int, head_dim: int, block_len: int, bits: int
    ) -> None:
        if bits not in (32, 16, 8, 4):
            raise ValueError(f"bits must be 32, 16, 8 or 4, got {bits}")
        self._sizes = (num_heads, num_kv_heads, head_dim, block_len)
        self._bits = bits
        block_bytes = _turbomind.cache_block_bytes(self._bits, 1, num_kv_heads, head_dim, block_len)
        # Poison, not zeros: what was never written must never be read.
        self._pool = torch.full((-(-blocks * block_bytes // 4),), float("nan"))

    def __call__(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, scale: float, spans: list[Span]
    ) -> torch.Tensor:
        """Rotate, write the cache and attend.

        Parameters
        ----------
        qkv
            ``[rows, (num_heads + 2 num_kv_heads) head_dim]`` float32; not changed.
        cos, sin
            ``[rows, head_dim / 2]`` float32.
        scale
            Multiplies the scores.
        spans
            For each sequence: first row, rows, position of the first row, block ids.

        Returns
        -------
        torch.Tensor
            ``[rows, num_heads head_dim]`` float32.
        """
        num_heads, num_kv_heads, head_dim, block_len = self._sizes
        rows = qkv.shape[0]
        _check("qkv", qkv, (torch.float32,), (None, (num_heads + 2 * num_kv_heads) * head_dim))
        _check("cos", cos, (torch.float32,), (rows, head_dim // 2))
        _check("sin", sin, (torch.float32,), (rows, head_dim // 2))
        scratch = qkv.clone()
        out = torch.empty(rows, num_heads * head_dim)
        _turbomind.attention(
            scratch.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            self._pool.data_ptr(),
            self._bits,
            1,
            0,
            num_heads,
            num_kv_heads,
            head_dim,
            block_len,
            scale,
            spans,
            out.data_ptr(),
        )
        return out
