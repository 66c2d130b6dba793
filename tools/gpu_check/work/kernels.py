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
from tools.gpu_check.work.limits import COPY, rate

_CALLS, _ROUNDS = 20, 10
_FORMATS = {"bfloat16": (1, 16), "int4": (4, 4), "float8": (5, 8)}  # number of WeightFormat, bits
_GROUP = 128
_WEIGHT_BYTES = 1 << 28
_ROWS = (1, 4, 8, 16, 32, 64, 128, 191, 256)


def main(context: Context) -> None:
    """Time decoding attention for each type of cache, and linear layers next to ``torch.mm``, in llama-8b's shapes."""
    device = context.native().Device("cuda")
    bandwidth = context.found(COPY)
    heads = (4, 2, 32, 32, 16) if context.is_dry_run else (32, 8, 128, 128, 64)
    shapes = ((3, 40),) if context.is_dry_run else ((64, 2048), (1, 2048), (1, 32768))
    rounds = 2 if context.is_dry_run else _ROUNDS
    for bits in (16, 8, 4):
        for sequences, length in shapes:
            seconds, moved = device.time_attention(bits, heads, sequences, length, _CALLS, rounds)
            row = f"attention {bits} bits"
            if (sequences, length) != shapes[0]:
                row += f", {sequences} x {length}"
            context.note(f"{row}, bandwidth", moved / seconds / bandwidth)
    sizes = ((64, 128),) if context.is_dry_run else ((28672, 4096), (4096, 14336), (6144, 4096))
    for kind in _FORMATS:
        for outputs, inputs in sizes:
            weights, moved = _weights(device, kind, outputs, inputs, context.is_dry_run)
            for rows in _ROWS:
                x = np.random.default_rng(rows).standard_normal((rows, inputs), np.float32)
                seconds = device.time_linear(weights, x, _CALLS, rounds)
                context.note(f"linear {kind} {outputs} x {inputs}, rows {rows}, bandwidth", moved / seconds / bandwidth)
    for outputs, inputs in sizes:
        for rows, seconds in _torch_seconds(context.torch_device, outputs, inputs).items():
            row = f"torch.mm bfloat16 {outputs} x {inputs}, rows {rows}, bandwidth"
            context.note(row, 2 * outputs * inputs / seconds / bandwidth)


def _torch_seconds(device: str, outputs: int, inputs: int) -> dict[int, float]:
    """Return the seconds of a product by ``torch.mm``, by its rows; on a GPU as a graph of such products."""
    weights = [torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16).t() for _ in range(2)]
    seconds = {}
    for rows in _ROWS:
        x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
        results = [torch.mm(x, weight) for weight in weights]  # what is captured takes no memory
        run = _captured(device, x, weights, results)
        seconds[rows] = 1 / rate(run, device) / _CALLS
    return seconds


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


def _weights(device: Any, kind: str, outputs: int, inputs: int, is_dry_run: bool) -> tuple[list[Any], float]:
    """Return weights of random data, and the bytes of one."""
    number, bits = _FORMATS[kind]
    moved = outputs * inputs * bits // 8
    groups = inputs // _GROUP
    generator = np.random.default_rng(0)
    count = 2 if is_dry_run else max(2, -(-_WEIGHT_BYTES // moved))
    if kind == "bfloat16":
        data = generator.standard_normal((outputs, inputs), np.float32).view(np.uint32) >> 16
        return [device.weight(data.astype(np.int16), number, outputs, inputs) for _ in range(count)], moved
    codes = generator.integers(0, 127, moved, np.uint8)  # of float8 no code that is no number
    if kind == "int4":
        scales = generator.uniform(0.001, 0.01, outputs * groups).astype(np.float16).view(np.uint16)
        more: dict[str, Any] = {"group": _GROUP, "scales": scales}
        moved += 2 * outputs * groups
    else:
        more = {"group": 32, "output_scales": generator.uniform(1e-4, 1e-3, outputs).astype(np.float32)}
    return [device.weight(codes, number, outputs, inputs, **more) for _ in range(count)], moved
