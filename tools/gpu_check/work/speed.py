"""Decode and prefill speed of one model, with its bytes and operations."""

from __future__ import annotations

import random

from lmdeploy.capacity.sizes import Sizes
from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.inprocess import InProcess, in_process
from tools.bench.roofline import ModelCost
from tools.bench.stats import median, steady_rate
from tools.bench.workload import EVERY_TOKEN, GREEDY
from tools.gpu_check.work.context import Context, random_prompts

_BLOCK = 64  # tokens
# Sequences, and the context after which they decode.
_DECODING = ((1, 128), (8, 128), (32, 128), (64, 128), (128, 128), (64, 2048))
_OWN = {"deepseek": ((1, 128), (32, 128), (64, 128), (32, 4096))}
_OUTPUT, _PROMPT = 96, 8192
_TINY_OUTPUT, _TINY_PROMPT = 5, 64


def main(context: Context, name: str) -> None:
    """Measure the shape ``name``; a dry run has the rows of the real sizes."""
    named = _OWN.get(name, _DECODING)
    sizes = (
        tuple((min(batch, 4), min(length // 64, 32) + 8) for batch, length in named) if context.is_dry_run else named
    )
    output, prompt = (_TINY_OUTPUT, _TINY_PROMPT) if context.is_dry_run else (_OUTPUT, _PROMPT)
    context.native()
    config = TurbomindEngineConfig(
        **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=max(batch for batch, _ in sizes),
        session_len=max(prompt, *(length for _, length in sizes)) + output + _BLOCK, cache_block_seq_len=_BLOCK,
        cache_max_entry_count=max(
            batch * (-(-(length + output) // _BLOCK) + 1) for batch, length in ((1, prompt), *sizes)
        ),
    )  # fmt: skip
    shape = context.shape(name)
    cost = ModelCost.of(Sizes.of_config(shape.config), shape.weight_bytes, 2, 2)
    with in_process(str(context.model(name)), config) as engine:
        for (batch, length), (named_batch, named_length) in zip(sizes, named, strict=True):
            row = f"{name}: decode {named_batch} x {named_length}"
            rate, busy = _decode(engine, batch, length, output)
            context.record(f"{row}, tokens/s", rate)
            context.record(f"{row}, busy", busy)
            context.record(f"{row}, bytes/s", cost.decode_bytes(batch, length + output / 2) * rate / batch)
        generator = random.Random(0)
        seconds = [
            engine.generate(random_prompts(generator, [(prompt, 1)]), 1, GREEDY)[0].first_token_latency
            for _ in range(4)
        ]
        rate = prompt / median(seconds[1:])
        attention = cost.sizes.attention * prompt  # twice the products, with half of the prompt on the mean
        context.record(f"{name}: prompt, tokens/s", rate)
        context.record(f"{name}: prompt, operations/s", cost.row_operations * rate)
        context.record(f"{name}: prompt, operations/s with attention", (cost.row_operations + attention) * rate)


def _decode(engine: InProcess, batch: int, length: int, output: int) -> tuple[float, float]:
    """Return the tokens/s of this many sequences that decode after this many tokens, and the GPU's busy share."""
    rates, shares, generator = [], [], random.Random(0)
    for _ in range(3 if batch * length < 1 << 16 else 2):  # the first one captures graphs
        worked, passed = engine.step_seconds
        rates.append(steady_rate(engine.generate(random_prompts(generator, [(length, output)] * batch), batch, GREEDY)))
        after = engine.step_seconds
        shares.append((after[0] - worked) / (after[1] - passed))
    return median(rates[1:]), median(shares[1:])
