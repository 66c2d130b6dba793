"""What the engine makes of one GPU, against what the GPU could do: ``tools/gpu_check.sh`` runs this.

Models of well-known shapes have random weights (``random_model``). Every rate is a median of rounds; torch measures the
limits in the same run. ``--shape tiny --device cpu`` tries the program out where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.turbomind.engine_dir import resolve
from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.random_model import SHAPES, write
from tools.bench.report import table, write_report
from tools.bench.roofline import ModelCost, model_cost
from tools.bench.stats import median, steady_rate
from tools.bench.workload import GREEDY, TokenRequest

_ROUNDS = 3
_KERNELS = {"cuda": "tests.kernels._cuda_device", "cpu": "tests.kernels._cuda_emulated"}
_COPY_BYTES = 1 << 30
_MATRIX = 8192
_FULL_REQUESTS = 64
_FULL_SHARE = 0.35  # of what all requests would take with values of 16 bits


@dataclass(frozen=True)
class Sizes:
    """Lengths in tokens; smaller ones where the program is only tried out."""

    decode: int = 128
    batch: int = 64
    batch_context: int = 2048
    prefill: int = 8192
    full_prompt: int = 1024
    full_output: int = 128


TINY = Sizes(decode=400, batch=4, batch_context=32, prefill=64, full_prompt=32, full_output=8)


@dataclass(frozen=True)
class Limits:
    """The device's, a second: bytes read and written by a copy, 16-bit operations of a matrix product."""

    bandwidth: float
    matmul: float


def measure_limits(device: str) -> Limits:
    """Measure what torch reaches on a device."""
    import torch

    scale = 1 if device == "cuda" else 64
    source = torch.ones(_COPY_BYTES // scale, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    size = _MATRIX // (1 if device == "cuda" else 16)
    square = torch.ones(size, size, dtype=torch.bfloat16, device=device)

    def rate(work: float, run: Callable[[], object]) -> float:
        seconds = []
        for _ in range(6):
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        return work / min(seconds)

    return Limits(
        rate(2.0 * source.numel(), lambda: target.copy_(source)), rate(2.0 * size**3, lambda: square @ square)
    )


@dataclass(frozen=True)
class Finding:
    """One line of the table: a value, and the least value that is promised, if one is."""

    workload: str
    value: float
    target: float | None = None

    def cells(self) -> list[str]:
        """Return the row of the printed table."""
        verdict = "" if self.target is None else "met" if self.value >= self.target else "missed"
        return [self.workload, f"{self.value:.3g}", "" if self.target is None else f">= {self.target}", verdict]


@dataclass(frozen=True)
class Pace:
    """The time between two tokens of a batch, in seconds, and in which share of all time the device has worked."""

    seconds: float
    busy_share: float


class Bench:
    """The measurements of one model directory on one device."""

    def __init__(self, model: Path, device: str, sizes: Sizes, limits: Limits) -> None:
        self._model = model
        self._device = device
        self._sizes = sizes
        self._limits = limits
        self._spec = resolve(model).spec
        self._random = random.Random(0)

    def config(self, batch: int, **more: object) -> TurbomindEngineConfig:
        """Return an engine config for a batch."""
        return TurbomindEngineConfig(device=self._device, dtype="bfloat16", max_batch_size=batch, **more)  # type: ignore[arg-type]

    def cost(self, config: TurbomindEngineConfig) -> ModelCost:
        """Return what a step moves."""
        return model_cost(self._spec, config)

    def requests(self, count: int, prompt: int, output: int) -> list[TokenRequest]:
        """Return requests with random prompts."""
        return [TokenRequest(tuple(self._random.choices(range(256), k=prompt)), output) for _ in range(count)]

    def step_pace(self, config: TurbomindEngineConfig, batch: int, context: int) -> Pace:
        """Measure a batch that decodes."""
        with in_process(str(self._model), config) as engine:
            times = []
            for _ in range(_ROUNDS + 1):
                records = engine.answer(self.requests(batch, context, self._sizes.decode), batch, GREEDY)
                times.append(batch / steady_rate(records))
            return Pace(median(times[1:]), 1 - engine.outside_share)

    def bandwidth_share(self, pace: Pace, config: TurbomindEngineConfig, batch: int, context: int) -> float:
        """Return the share of the bandwidth that steps take."""
        cost = self.cost(config)
        moved = cost.weight_bytes + cost.cache_bytes * batch * (context + self._sizes.decode / 2)
        return moved / pace.seconds / self._limits.bandwidth

    def attention_share(self, bits: int) -> float:
        """Return the share of the bandwidth that attention alone takes, of decoding sequences."""
        kernels = importlib.import_module(_KERNELS[self._device]).Device("cuda")
        heads = (self._spec.num_heads, self._spec.num_kv_heads, self._spec.head_dim, self._spec.head_dim, 64)
        seconds, moved = kernels.time_attention(bits, heads, self._sizes.batch, self._sizes.batch_context, 20)
        return float(moved / seconds / self._limits.bandwidth)

    def prefill_share(self) -> tuple[float, float]:
        """Return prompt tokens/s, and the share of the matrix products' peak that they take."""
        length = self._sizes.prefill
        with in_process(str(self._model), self.config(1, session_len=length + 16)) as engine:
            times = [
                engine.answer(self.requests(1, length, 1), 1, GREEDY)[0].first_token_latency for _ in range(_ROUNDS + 1)
            ]
        rate = length / median(times[1:])
        return rate, self.cost(self.config(1)).operations * rate / self._limits.matmul

    def full_cache_rate(self, policy: int) -> float:
        """Return requests/s where all wait for a cache that holds a third of them with values of 16 bits."""
        prompt, output = self._sizes.full_prompt, self._sizes.full_output
        config = self.config(_FULL_REQUESTS, quant_policy=policy)
        plain = self.cost(self.config(_FULL_REQUESTS)).cache_bytes
        tokens = _FULL_SHARE * _FULL_REQUESTS * (prompt + output) * plain / self.cost(config).cache_bytes
        config.cache_max_entry_count = int(tokens) // config.cache_block_seq_len
        with in_process(str(self._model), config) as engine:
            rates = []
            for _ in range(_ROUNDS + 1):
                records = engine.answer(self.requests(_FULL_REQUESTS, prompt, output), _FULL_REQUESTS, GREEDY)
                ends = [record.arrivals[-1][0] for record in records]
                rates.append(len(records) / (max(ends) - min(record.started for record in records)))
        return median(rates[1:])

    def transformers_rate(self, batch: int) -> float:
        """Return the tokens/s of ``generate`` with its static cache, compiled where it compiles."""
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self._model, dtype=torch.bfloat16).to(self._device).eval()
        ids = torch.randint(0, 256, (batch, 128), device=self._device)
        new = self._sizes.decode
        rates = []
        for _ in range(_ROUNDS + 1):
            begin = time.perf_counter()
            with torch.no_grad():
                model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=new,
                    min_new_tokens=new,
                    do_sample=False,
                    cache_implementation="static",
                    pad_token_id=0,
                )
            rates.append(batch * new / (time.perf_counter() - begin))
        return median(rates[1:])

    def own_rate(self, batch: int) -> float:
        """Return our tokens/s for the same requests, prefill included."""
        with in_process(str(self._model), self.config(batch)) as engine:
            rates = []
            for _ in range(_ROUNDS + 1):
                records = engine.answer(self.requests(batch, 128, self._sizes.decode), batch, GREEDY)
                end = max(record.arrivals[-1][0] for record in records)
                begin = min(record.started for record in records)
                rates.append(sum(record.output_len for record in records) / (end - begin))
        return median(rates[1:])


def measure(bench: Bench, sizes: Sizes, beside_transformers: bool) -> Iterator[Finding]:
    """Yield every line of the table, each as soon as it is known."""
    alone = bench.step_pace(bench.config(1), 1, 128)
    yield Finding("decode, batch 1: tokens/s", 1 / alone.seconds)
    yield Finding("decode, batch 1: of the bandwidth", bench.bandwidth_share(alone, bench.config(1), 1, 128), 0.85)
    batch, context = sizes.batch, sizes.batch_context
    crowd = bench.step_pace(bench.config(batch), batch, context)
    name = f"decode, batch {batch}, context {context}"
    yield Finding(f"{name}: tokens/s", batch / crowd.seconds)
    share = bench.bandwidth_share(crowd, bench.config(batch), batch, context)
    yield Finding(f"{name}: of the bandwidth", share, 0.75)
    yield Finding(f"{name}: of the time, the device works", crowd.busy_share, 0.95)
    for bits, target in ((16, 0.9), (8, 0.85), (4, 0.8)):
        yield Finding(f"attention, {bits}-bit cache: of the bandwidth", bench.attention_share(bits), target)
    rounded = bench.step_pace(bench.config(1, weight_bits=4), 1, 128)
    yield Finding("decode, batch 1, 4-bit weights: times bfloat16", alone.seconds / rounded.seconds, 2.4)
    rate, share = bench.prefill_share()
    name = f"prefill of {sizes.prefill}"
    yield Finding(f"{name}: tokens/s", rate)
    yield Finding(f"{name}: of the matrix products' rate", share, 0.65)
    plain = bench.full_cache_rate(0)
    for bits, target in ((8, 1.27), (4, 1.39)):
        name = f"full cache, {bits}-bit: requests, times those of 16-bit"
        yield Finding(name, bench.full_cache_rate(bits) / plain, target)
    if beside_transformers:
        for batch, target in ((1, 3.0), (32, 4.0)):
            times = bench.own_rate(batch) / bench.transformers_rate(batch)
            yield Finding(f"batch {batch}: times transformers generate", times, target)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Measure the engine on a GPU against the GPU's own limits.")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--transformers", action="store_true", help="also beside transformers generate")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file too")
    arguments = parser.parse_args()
    sizes = TINY if arguments.shape == "tiny" else Sizes()
    limits = measure_limits(arguments.device)
    print(f"limits: {limits.bandwidth / 1e9:.0f} GB/s copied, {limits.matmul / 1e12:.3g} TFLOP/s bfloat16", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        model = write(arguments.shape, Path(directory) / arguments.shape, arguments.device)
        found: list[Finding] = []
        for finding in measure(Bench(model, arguments.device, sizes, limits), sizes, arguments.transformers):
            found.append(finding)
            print(*finding.cells(), flush=True)
            # After each: whoever ends this program early has what it found until then.
            write_report(
                arguments.json,
                "device_targets",
                shape=arguments.shape,
                device=arguments.device,
                device_limits=asdict(limits),
                found=[asdict(finding) for finding in found],
            )
    print(table(["workload", "value", "target", ""], [finding.cells() for finding in found]), flush=True)


if __name__ == "__main__":
    flags.run(main)
