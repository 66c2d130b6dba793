"""How fast one model decodes and reads prompts, with one engine: against the device's limits, or against bfloat16."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.turbomind.engine_settings import EngineConfig
from tools.bench.inprocess import InProcess, in_process
from tools.bench.shapes import SHAPES, tiny
from tools.bench.stats import median, steady_rate
from tools.bench.workload import EVERY_TOKEN, GREEDY, TokenRequest
from tools.gpu_check.cost import Cost, cost_of
from tools.gpu_check.work.context import RANDOM_LLAMA, Context
from tools.gpu_check.work.limits import BFLOAT16, COPY, FLOAT8

_BLOCK = 64  # tokens
_PLAIN = "llama-8b"


@dataclass(frozen=True)
class Sizes:
    """In tokens.

    Attributes
    ----------
    decoding
        Sequences and the context after which they decode.
    """

    output: int = 96
    prompt: int = 8192
    decoding: tuple[tuple[int, int], ...] = ((1, 128), (32, 128), (64, 128), (64, 2048))

    @property
    def session(self) -> int:
        """Of the longest sequence."""
        return max(self.prompt, *(length for _, length in self.decoding)) + self.output + _BLOCK

    @property
    def blocks(self) -> int:
        """Of the cache."""
        needs = [(1, self.prompt), *self.decoding]
        return max(batch * (-(-(length + self.output) // _BLOCK) + 1) for batch, length in needs)


_OWN = {"deepseek": Sizes(decoding=((1, 128), (32, 128), (64, 128), (32, 4096)))}
_TINY = Sizes(output=5, prompt=64, decoding=((1, 16), (2, 16), (4, 16), (4, 32)))


def main(context: Context, name: str, variant: str = "") -> None:
    """Measure the shape ``name``; a dry run has the rows of the real sizes.

    Where something is switched off, ``variant`` says what, and the speed with it is compared; ``pytorch`` is the other
    engine.
    """
    named = _OWN.get(name, Sizes())
    sizes = _TINY if context.is_dry_run else named
    config: EngineConfig
    if variant == "pytorch":
        config = PytorchEngineConfig(
            **EVERY_TOKEN, device_type=context.torch_device, dtype="bfloat16", max_batch_size=64,
            session_len=sizes.session, block_size=_BLOCK, num_gpu_blocks=sizes.blocks,
            max_prefill_token_num=sizes.prompt, custom_module_map=RANDOM_LLAMA,
        )  # fmt: skip
    else:
        context.native()
        config = TurbomindEngineConfig(
            **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=64, session_len=sizes.session,
            cache_block_seq_len=_BLOCK, cache_max_entry_count=sizes.blocks,
        )  # fmt: skip
    cost = cost_of(tiny(SHAPES[name]) if context.is_dry_run else SHAPES[name])
    with in_process(str(context.model(name)), config) as engine:
        speed = _Speed(context, name, variant, cost, sizes, engine)
        for (batch, length), (named_batch, named_length) in zip(sizes.decoding, named.decoding, strict=True):
            speed.decode(batch, length, f"decode {named_batch} x {named_length}")
        speed.prompt()


class _Speed:
    def __init__(self, context: Context, name: str, variant: str, cost: Cost, sizes: Sizes, engine: InProcess) -> None:
        self._context, self._name, self._cost, self._sizes, self._engine = context, name, cost, sizes, engine
        self._title = f"{name} {variant}".rstrip()
        self._random = random.Random(0)

    def decode(self, batch: int, length: int, what: str) -> None:
        """Note the pace of this many sequences that decode after this many tokens."""
        rates, shares = [], []
        for _ in range(3 if batch * length < 1 << 16 else 2):  # the first one captures graphs
            worked, passed = self._engine.step_seconds
            records = self._engine.generate(self._requests(batch, length, self._sizes.output), batch, GREEDY)
            after = self._engine.step_seconds
            rates.append(steady_rate(records))
            shares.append((after[0] - worked) / (after[1] - passed))
        rate, row = median(rates[1:]), f"{self._title}: {what}"
        self._note_rate(what, rate)
        self._context.note(f"{row}, busy", median(shares[1:]))
        moved = self._cost.decode_bytes(batch, length + self._sizes.output / 2)
        self._context.note(f"{row}, bandwidth", moved * rate / batch / self._context.found(COPY))
        if SHAPES[self._name].weights != "bfloat16" and self._title == self._name:
            plain = self._context.found(f"{_PLAIN}: {what}, tokens/s")
            self._context.note(f"{row}, times bfloat16", rate / plain)

    def prompt(self) -> None:
        """Note the rate of one long prompt."""
        length = self._sizes.prompt
        seconds = [
            self._engine.generate(self._requests(1, length, 1), 1, GREEDY)[0].first_token_latency for _ in range(4)
        ]
        rate = length / median(seconds[1:])
        peak = self._context.found(FLOAT8 if SHAPES[self._name].weights == "fp8" else BFLOAT16)
        self._note_rate("prompt", rate)
        self._context.note(f"{self._title}: prompt, peak", self._cost.row_operations * rate / peak)
        attention = self._cost.attention_operations * length / 2
        row = f"{self._title}: prompt, peak with attention's operations"
        self._context.note(row, (self._cost.row_operations + attention) * rate / peak)

    def _note_rate(self, what: str, rate: float) -> None:
        self._context.note(f"{self._title}: {what}, tokens/s", rate)
        if self._title != self._name:
            whole = self._context.found(f"{self._name}: {what}, tokens/s")
            self._context.note(f"{self._title}: {what}, times {self._name}", rate / whole)

    def _requests(self, count: int, length: int, output: int) -> Sequence[TokenRequest]:
        return [TokenRequest(tuple(self._random.choices(range(256), k=length)), output) for _ in range(count)]
