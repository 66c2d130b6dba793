"""Throughput of many requests of ShareGPT-like lengths, against the device's roofline."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lmdeploy.capacity.sizes import Sizes
from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.inprocess import in_process
from tools.bench.roofline import ModelCost
from tools.bench.stats import duration
from tools.bench.workload import EVERY_TOKEN, GREEDY
from tools.gpu_check.table import BFLOAT16, COPY
from tools.gpu_check.work.context import Context, random_prompts

_SHAPE = "llama-8b"
_BATCH = 512
_TOKENS_A_STEP = 8192
_REQUESTS, _FEW = 1000, 12
# Of ShareGPT's first turns as benchmarks of serving use them: skewed, means of about 220 and 200 tokens.
_PROMPT = (4.95, 1.2, 4, 1024)  # mean and deviation of the logarithm, least, most
_OUTPUT = (4.8, 1.1, 4, 1024)


def lengths(count: int) -> list[tuple[int, int]]:
    """Return lengths of prompts and responses in tokens, always the same ones."""
    generator = random.Random(0)

    def draw(mean: float, deviation: float, minimum: int, maximum: int) -> int:
        while not minimum <= (length := round(generator.lognormvariate(mean, deviation))) <= maximum:
            pass
        return length

    return [(draw(*_PROMPT), draw(*_OUTPUT)) for _ in range(count)]


def main(context: Context) -> None:
    """Answer them, and note rates, the GPU's busy share and the least seconds until all have begun.

    After that the batch drains: steps are not full, for which no engine is to blame.
    """
    context.native()
    sizes = lengths(_FEW if context.is_dry_run else _REQUESTS)
    if context.is_dry_run:
        sizes = [(prompt // 40 + 1, response // 40 + 1) for prompt, response in sizes]
    batch = 4 if context.is_dry_run else _BATCH
    requests = random_prompts(random.Random(1), sizes)
    config = TurbomindEngineConfig(
        **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=batch, max_prefill_token_num=_TOKENS_A_STEP,
        session_len=128 if context.is_dry_run else 2112,
    )  # fmt: skip
    if context.is_dry_run:  # else a share of the GPU's memory
        config.cache_max_entry_count = 64
    with in_process(str(context.model(_SHAPE)), config) as engine:
        engine.generate(requests[: batch // 2], batch, GREEDY)  # captures graphs
        worked, passed = engine.step_seconds
        records = engine.generate(requests, len(requests), GREEDY)
        after = engine.step_seconds
    seconds = duration(records)
    read, written = (sum(numbers) for numbers in zip(*sizes, strict=True))
    context.record("crowd: output tokens/s", written / seconds)
    context.record("crowd: all tokens/s", (read + written) / seconds)
    context.record("crowd: busy", (after[0] - worked) / (after[1] - passed))
    begun = max(record.arrivals[0][0] for record in records) - min(record.started for record in records)
    context.record("crowd: seconds", begun)
    cost = ModelCost.of(Sizes.of_config(context.shape(_SHAPE).config), 2, 2, 2)
    min_seconds = min_time(cost, (context.found(COPY), context.found(BFLOAT16)), sizes, batch, _TOKENS_A_STEP)
    context.record("crowd: least seconds", min_seconds)


def min_time(
    cost: ModelCost, limits: tuple[float, float], sizes: Sequence[tuple[int, int]], batch: int, tokens_a_step: int
) -> float:
    """Return the seconds until all requests have their first token, if every operator ran at a limit of the device.

    Requests are taken in their order, as soon as one of ``batch`` places is free; a step has all that decode, and of
    prompts what fits into ``tokens_a_step``. ``limits``: of the device: bytes and operations a second. ``sizes``:
    tokens of each request's prompt and response.
    """
    waiting = list(reversed(sizes))
    running: list[list[int]] = []  # tokens of the prompt still to be computed, context so far, tokens still to come
    seconds = 0.0
    while waiting or any(state[0] for state in running):
        while waiting and len(running) < batch:
            prompt, response = waiting.pop()
            running.append([prompt, 0, response])
        decoding = [state for state in running if state[0] == 0]
        rows = sampled = len(decoding)
        cached = pairs = float(sum(state[1] for state in decoding))
        for state in decoding:
            state[1] += 1
            state[2] -= 1
        for state in running:
            taken = min(state[0], tokens_a_step - rows)
            if taken <= 0:
                continue
            cached += state[1]
            pairs += taken * (state[1] + taken / 2)
            state[0] -= taken
            state[1] += taken
            rows += taken
            if state[0] == 0:  # its last row chooses the first token
                sampled += 1
                state[2] -= 1
        seconds += cost.step_seconds(*limits, rows, sampled, cached, pairs)
        running = [state for state in running if state[0] > 0 or state[2] > 0]
    return seconds
