"""What rounding the cache brings where memory is short: requests/s where all wait for room in it."""

from __future__ import annotations

import random

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.inprocess import in_process
from tools.bench.roofline import head_bytes
from tools.bench.shapes import SHAPES, tiny
from tools.bench.stats import duration
from tools.bench.workload import EVERY_TOKEN, GREEDY, TokenRequest
from tools.gpu_check.work.context import Context

_SHAPE = "llama-8b"
_SHARE = 0.35  # of what all requests would take with values of 16 bits
_BLOCK = 64


def main(context: Context) -> None:
    """Measure caches of 16, 8 and 4 bits of one size in bytes."""
    context.native()
    head_dim = (tiny(SHAPES[_SHAPE]) if context.is_dry_run else SHAPES[_SHAPE]).head_dim
    count, prompt, response = (6, 150, 4) if context.is_dry_run else (64, 1024, 128)
    tokens = random.Random(0)
    rates = {}
    for bits in (16, 8, 4):
        cached = _SHARE * count * (prompt + response) * head_bytes(head_dim, 16) / head_bytes(head_dim, bits)
        config = TurbomindEngineConfig(
            **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=count,
            session_len=prompt + response + _BLOCK,
            quant_policy=0 if bits == 16 else bits, cache_block_seq_len=_BLOCK,
            cache_max_entry_count=int(cached) // _BLOCK,
        )  # fmt: skip
        with in_process(str(context.model(_SHAPE)), config) as engine:
            for _ in range(2):  # the second counts
                requests = [TokenRequest(tuple(tokens.choices(range(256), k=prompt)), response) for _ in range(count)]
                rates[bits] = count / duration(engine.generate(requests, count, GREEDY))
        context.note(f"full cache {bits} bits, requests/s", rates[bits])
        if bits != 16:
            context.note(f"full cache {bits} bits, times 16", rates[bits] / rates[16])
