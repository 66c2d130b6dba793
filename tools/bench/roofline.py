"""Roofline of the machine, and the fraction that a rate reaches.

The limits are measured (``python -m tools.bench.roofline``), in a process of their own so that its threads are gone
when the engines run; each is the best of several passes, and a lower bound: a better loop may exist.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lmdeploy.capacity.plan import Storage
from lmdeploy.capacity.sizes import Sizes
from lmdeploy.messages import TurbomindEngineConfig

_BUFFER = 1 << 29  # bytes, far more than any cache
_SIZE = 2048  # of the square matrices that are multiplied
_PASSES = 6


@dataclass(frozen=True)
class Limits:
    """The machine's limits, a second, with one thread for each processor."""

    bandwidth: float  # bytes read from memory
    # Operations (a multiplication and an addition are two) in torch's matrix products of these types
    float32: float
    int8: float

    def __str__(self) -> str:
        return (
            f"{self.bandwidth / 1e9:.1f} GB/s read, {self.float32 / 1e9:.0f} GFLOP/s float32, "
            f"{self.int8 / 1e9:.0f} GOP/s int8"
        )


@dataclass(frozen=True)
class ModelCost:
    """Bytes and operations of a model's steps; a multiplication and an addition are two operations."""

    sizes: Sizes  # of the model, as `lmdeploy plan` reads them
    # Weights of the layers that every step reads, of the output layer, and of all experts
    dense_bytes: float
    output_bytes: float
    expert_bytes: float = 0.0
    cache_bytes: float = 0.0  # read for every token of a context

    @classmethod
    def of(cls, sizes: Sizes, weight: float, output: float, cached: float) -> "ModelCost":
        """Return the cost by the bytes of a weight of the layers, one of the output layer and a cached number."""
        experts = sizes.experts * sizes.expert * weight
        return cls(sizes, sizes.dense * weight, sizes.output * output, experts, sizes.cached * cached)

    @property
    def row_operations(self) -> float:
        """Of one row in the layers' matrices; attention and output layer apart."""
        return 2.0 * (self.sizes.active - self.sizes.output)

    def weight_bytes(self, rows: float = 1) -> float:
        """Return the bytes of weights that a step of this many rows reads; each row chooses its experts evenly."""
        return self.dense_bytes + self.output_bytes + self._experts(rows)

    def _experts(self, rows: float) -> float:
        sizes = self.sizes
        return self.expert_bytes * (1 - (1 - sizes.experts_per_token / sizes.experts) ** rows) if sizes.experts else 0.0

    def decode_bytes(self, batch: int, context: float) -> float:
        """Return the bytes that a step reads in which this many sequences decode after this many tokens each."""
        return self.weight_bytes(batch) + batch * context * self.cache_bytes

    def bandwidth_share(self, bandwidth: float, rate: float, context: float, streams: int = 1) -> float:
        """Return the share of the bandwidth that generating takes.

        ``bandwidth``: of the machine, bytes a second. ``rate``: generated tokens/s of all streams. ``context``: mean
        tokens of context. ``streams``: which share each step's weights.
        """
        return self.decode_bytes(streams, context) * rate / streams / bandwidth

    def step_seconds(
        self, bandwidth: float, peak: float, rows: int, sampled: int, cached: float, pairs: float
    ) -> float:
        """Return the least seconds of a step: the sum of what bounds each of its operators.

        ``bandwidth``, ``peak``: of the device, bytes and operations a second. ``rows``, ``sampled``: of the step; of
        these, the rows that pass the output layer. ``cached``: tokens of the cache that it reads. ``pairs``: of a query
        and a key.
        """
        sizes = self.sizes
        operators = (
            (self.dense_bytes, rows * sizes.dense),
            (self._experts(rows), rows * sizes.experts_per_token * sizes.expert),
            (self.output_bytes, sampled * sizes.output),
            (cached * self.cache_bytes, pairs * sizes.attention),
        )
        return sum(max(moved / bandwidth, 2 * products / peak) for moved, products in operators)


def engine_cost(sizes: Sizes, config: TurbomindEngineConfig, head_dim: int) -> ModelCost:
    """Return the cost of a model under an engine config of the CPU."""
    storage = Storage(config.weight_bits or (32 if config.dtype == "float32" else 16))
    cached = head_bytes(head_dim, config.quant_policy or 16) / head_dim
    return ModelCost.of(sizes, storage.weight_bytes, storage.output_bytes, cached)


def head_bytes(head_dim: int, bits: int) -> int:
    """Return the bytes of a key or value of one head in the cache; below 16 bits with float16 scale and zero point."""
    return head_dim * bits // 8 + (3 if bits < 16 else 0)


def measure_limits() -> Limits:
    """Measure the machine (about 5 s); raise `RuntimeError` if it could not be measured."""
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the machine's limits could not be measured:\n{done.stderr[-2000:]}")
    return Limits(**json.loads(done.stdout))


def _measure() -> Limits:
    import torch

    def best(run: Callable[[], object]) -> float:
        seconds = []
        for _ in range(_PASSES):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    buffer = torch.ones(_BUFFER // 4)
    matrix = buffer.view(-1, 4096)
    row = torch.ones(4096)
    # Several ways to read it all: which one comes nearest to the memory's limit depends on the processor.
    readers = (buffer.sum, buffer.amax, lambda: matrix @ row)
    bandwidth = _BUFFER / min(best(reader) for reader in readers)
    x = torch.randn(_SIZE, _SIZE)
    q = torch.randint(-100, 100, (_SIZE, _SIZE), dtype=torch.int8)
    operations = 2 * _SIZE**3
    return Limits(bandwidth, operations / best(lambda: x @ x), operations / best(lambda: torch._int_mm(q, q)))


if __name__ == "__main__":
    print(json.dumps(asdict(_measure())))
