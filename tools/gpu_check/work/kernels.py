"""Kernels alone, as graphs of 20 calls over random data: what launches cost is hidden, as in a captured step.

Attention reads a cache whose blocks are scattered; linear layers have several weights in turn, more than a cache of the
GPU holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tools.gpu_check.work.context import Context
from tools.gpu_check.work.limits import rate

_CALLS, _ROUNDS = 20, 10
_FEW_ROWS = 256  # up to which launches are short
_FORMATS = {"bfloat16": (1, 16), "int4": (4, 4), "float8": (5, 8)}  # number of WeightFormat, bits
_GROUP = 128
_WEIGHT_BYTES = 1 << 28
_ROWS = (1, 8, 16, 32, 64, 128, 191, 256, 512, 1024, 2048, 8192)


def main(context: Context) -> None:
    """Time decoding attention for each type of cache, and linear layers next to ``torch.mm``, in llama-8b's shapes."""
    device = context.native().Device("cuda")
    heads = (4, 2, 32, 32, 16) if context.is_dry_run else (32, 8, 128, 128, 64)
    contexts = ((3, 40),) if context.is_dry_run else ((64, 2048), (1, 2048), (1, 32768))
    rounds = 2 if context.is_dry_run else _ROUNDS
    for bits in (16, 8, 4):
        for sequences, length in contexts:
            seconds, moved = device.time_attention(bits, heads, sequences, length, _CALLS, rounds)
            named = "" if (sequences, length) == contexts[0] else f", {sequences} x {length}"
            context.record(f"attention {bits} bits{named}, bytes/s", moved / seconds)
    sizes = ((64, 128),) if context.is_dry_run else ((28672, 4096), (4096, 14336), (6144, 4096))
    all_rows = (1, 8) if context.is_dry_run else _ROWS
    for outputs, inputs in sizes:
        x = np.random.default_rng(0).standard_normal((all_rows[-1], inputs), np.float32)
        for kind in _FORMATS:
            weights = _weights(device, kind, outputs, inputs, context.is_dry_run)
            for rows in all_rows:
                seconds = device.time_linear(weights, x[:rows], _CALLS if rows <= _FEW_ROWS else 2, rounds)
                context.record(f"linear {kind} {outputs} x {inputs}, rows {rows}, us", 1e6 * seconds)
        for rows in all_rows:
            seconds = _torch_seconds(context.torch_device, rows, outputs, inputs)
            context.record(f"torch.mm bfloat16 {outputs} x {inputs}, rows {rows}, us", 1e6 * seconds)


def _torch_seconds(device: str, rows: int, outputs: int, inputs: int) -> float:
    """Return the seconds of a product by ``torch.mm``; on a GPU as a graph of such products."""
    weights = [torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16).t() for _ in range(2)]
    x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    results = [torch.mm(x, weight) for weight in weights]  # what is captured takes no memory
    return 1 / rate(_captured(device, x, weights, results), device) / _CALLS


def _captured(
    device: str, x: torch.Tensor, weights: list[torch.Tensor], results: list[torch.Tensor]
) -> Callable[[], object]:
    def products() -> None:
        for call in range(_CALLS):
            torch.mm(x, weights[call % len(weights)], out=results[call % len(weights)])

    if device != "cuda":
        return products
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    replay: Callable[[], object] = graph.replay
    return replay


def _weights(device: Any, kind: str, outputs: int, inputs: int, is_dry_run: bool) -> list[Any]:
    """Return weights of random data."""
    number, bits = _FORMATS[kind]
    size = outputs * inputs * bits // 8
    generator = np.random.default_rng(0)
    count = 2 if is_dry_run else max(2, -(-_WEIGHT_BYTES // size))

    def weights(data: Any, group: int = 0, scales: Any = None, output_scales: Any = None) -> list[Any]:
        fields = (None, group, scales, None, None, None, output_scales, None, 1, False, False)  # of LinearWeight
        return [device.weight(data, number, outputs, inputs, *fields) for _ in range(count)]

    if kind == "bfloat16":
        data = generator.standard_normal((outputs, inputs), np.float32).view(np.uint32) >> 16
        return weights(data.astype(np.int16))
    quantized = generator.integers(0, 127, size, np.uint8)  # of float8 no code that is no number
    if kind == "int4":
        scales = generator.uniform(0.001, 0.01, outputs * (inputs // _GROUP)).astype(np.float16).view(np.uint16)
        return weights(quantized, _GROUP, scales)
    return weights(quantized, 32, output_scales=generator.uniform(1e-4, 1e-3, outputs).astype(np.float32))
