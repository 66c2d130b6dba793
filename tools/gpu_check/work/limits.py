"""Peak rates of the device, by torch on random data: zeros take less power, and so are faster."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from tools.gpu_check.table import BFLOAT16, COPY, FLOAT8
from tools.gpu_check.work.context import Context

_CALLS, _ROUNDS = 10, 4


def main(context: Context) -> None:
    """Measure the copy bandwidth and the matrix products of 16 and 8 bits."""
    device = context.torch_device
    count, size = (1 << 20, 256) if context.is_dry_run else (1 << 30, 8192)
    source = torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    context.record(COPY, 2 * count * rate(lambda: target.copy_(source), device))
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    context.record(BFLOAT16, 2 * size**3 * rate(lambda: a @ b, device))
    try:
        one = torch.ones((), device=device)
        left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        product = lambda: torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16)  # noqa: E731
        context.record(FLOAT8, 2 * size**3 * rate(product, device))
    except RuntimeError as error:  # before compute capability 8.9
        print(f"no fp8 products: {error}")


def rate(run: Callable[[], object], device: str) -> float:
    """Return calls a second: the best of rounds of several calls, which the device does back to back."""
    seconds = []
    for _ in range(_ROUNDS):
        _wait(device)
        begin = time.perf_counter()
        for _ in range(_CALLS):
            run()
        _wait(device)
        seconds.append(time.perf_counter() - begin)
    return _CALLS / min(seconds)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
