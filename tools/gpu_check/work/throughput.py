"""Many requests of the lengths that conversations have, all at once, against what the device could do at best."""

from __future__ import annotations

import random

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.inprocess import in_process
from tools.bench.shapes import SHAPES, tiny
from tools.bench.stats import duration
from tools.bench.workload import EVERY_TOKEN, GREEDY, TokenRequest
from tools.gpu_check.cost import Limits, cost_of, least_seconds
from tools.gpu_check.work.context import Context
from tools.gpu_check.work.limits import BFLOAT16, COPY

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

    def draw(mean: float, deviation: float, least: int, most: int) -> int:
        while not least <= (length := round(generator.lognormvariate(mean, deviation))) <= most:
            pass
        return length

    return [(draw(*_PROMPT), draw(*_OUTPUT)) for _ in range(count)]


def main(context: Context) -> None:
    """Answer them, and note rates and the share of the step roofline."""
    context.native()
    shape = tiny(SHAPES[_SHAPE]) if context.is_dry_run else SHAPES[_SHAPE]
    wanted = lengths(_FEW if context.is_dry_run else _REQUESTS)
    if context.is_dry_run:
        wanted = [(prompt // 40 + 1, response // 40 + 1) for prompt, response in wanted]
    batch = 4 if context.is_dry_run else _BATCH
    tokens = random.Random(1)
    requests = [TokenRequest(tuple(tokens.choices(range(256), k=prompt)), response) for prompt, response in wanted]
    config = TurbomindEngineConfig(
        **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=batch, max_prefill_token_num=_TOKENS_A_STEP,
        session_len=128 if context.is_dry_run else 2112,
    )  # fmt: skip
    if context.is_dry_run:  # else a share of the GPU's memory
        config.cache_max_entry_count = 64
    with in_process(str(context.model(_SHAPE)), config) as engine:
        engine.generate(requests[: batch // 2], batch, GREEDY)  # captures graphs
        records = engine.generate(requests, len(requests), GREEDY)
    seconds = duration(records)
    read, written = (sum(numbers) for numbers in zip(*wanted, strict=True))
    context.note("crowd: requests", len(wanted))
    context.note("crowd: input tokens", read)
    context.note("crowd: output tokens", written)
    context.note("crowd: output tokens/s", written / seconds)
    context.note("crowd: all tokens/s", (read + written) / seconds)
    limits = Limits(context.found(COPY), context.found(BFLOAT16))
    least = least_seconds(cost_of(shape), limits, wanted, batch, _TOKENS_A_STEP)
    context.note("crowd: roofline", least / seconds)
