"""What the machine could do at best, and how much of it a rate is.

The limits are measured (``python -m tools.bench.roofline``), in a process of their own so that its threads are gone
when the engines run; each is the best of several passes, and a lower bound: a better loop may exist.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.turbomind.spec import ModelSpec

_BUFFER = 1 << 29  # bytes, far more than any cache
_SIZE = 2048  # of the square matrices that are multiplied
_PASSES = 6
_TILE, _GROUP = (
    16,
    32,
)  # of quantized weights (backend_cpp/kernels/packed_weight.h, backend_cpp/weights/weight_reader.h)


@dataclass(frozen=True)
class Limits:
    """The machine's limits, a second, with one thread for each processor.

    Attributes
    ----------
    bandwidth
        Bytes read from memory.
    float32, int8
        Operations (a multiplication and an addition are two) in torch's matrix products of these types.
    """

    bandwidth: float
    float32: float
    int8: float

    def __str__(self) -> str:
        return (
            f"{self.bandwidth / 1e9:.1f} GB/s read, {self.float32 / 1e9:.0f} GFLOP/s float32, "
            f"{self.int8 / 1e9:.0f} GOP/s int8"
        )


@dataclass(frozen=True)
class ModelCost:
    """What one step must move and compute.

    Attributes
    ----------
    weight_bytes
        Read by every step that generates: all matrices, output layer included.
    cache_bytes
        Read for every token of a sequence's context.
    operations
        Of one row in the layers' matrices; attention and output layer apart.
    """

    weight_bytes: int
    cache_bytes: int
    operations: int

    def bandwidth_share(self, limits: Limits, rate: float, context: float, streams: int = 1) -> float:
        """Return the share of the bandwidth that generating takes.

        Parameters
        ----------
        limits
            Of the machine.
        rate
            Generated tokens/s of all streams.
        context
            Mean tokens of context.
        streams
            Which share each step's weights.
        """
        return (self.weight_bytes / streams + self.cache_bytes * context) * rate / limits.bandwidth

    def compute_share(self, peak: float, rate: float) -> float:
        """Return the share of a peak of operations/s that this many rows/s take."""
        return self.operations * rate / peak


def model_cost(spec: ModelSpec, config: TurbomindEngineConfig) -> ModelCost:
    """Return the cost of a model with dense gated MLPs under an engine config."""
    heads = spec.num_heads * spec.head_dim
    matrices = [
        (heads + 2 * spec.num_kv_heads * spec.head_dim, spec.hidden_size),
        (spec.hidden_size, heads),
        (2 * spec.intermediate_size, spec.hidden_size),
        (spec.hidden_size, spec.intermediate_size),
    ]
    plain = 32 if (spec.dtype if config.dtype == "auto" else config.dtype) == "float32" else 16
    bits = config.weight_bits or plain
    layers = spec.num_layers * sum(matrix_bytes(out, inner, bits) for out, inner in matrices)
    # The output layer is rounded to 8 bits wherever the others are to 8 or 4.
    output = matrix_bytes(spec.vocab_size, spec.hidden_size, 8 if config.weight_bits else plain)
    cached_heads = 2 * spec.num_layers * spec.num_kv_heads
    cache_bytes = cached_heads * head_bytes(spec.head_dim, config.quant_policy or plain)
    operations = 2 * spec.num_layers * sum(out * inner for out, inner in matrices)
    return ModelCost(layers + output, cache_bytes, operations)


def matrix_bytes(out_features: int, in_features: int, bits: int) -> int:
    """Return the bytes of a matrix in memory; below 16 bits with padding and float16 scales."""
    if bits >= 16:
        return out_features * in_features * bits // 8
    outputs = -(-out_features // _TILE) * _TILE
    groups = -(-in_features // _GROUP)
    return outputs * groups * (_GROUP * bits // 8 + 2)


def head_bytes(head_dim: int, bits: int) -> int:
    """Return the bytes of a key or value of one head in the cache; below 16 bits with float16 scale and zero point."""
    return head_dim * bits // 8 + (3 if bits < 16 else 0)


def measure_limits() -> Limits:
    """Measure the machine (about 5 s).

    Raises
    ------
    RuntimeError
        It could not be measured.
    """
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
    wide = buffer.view(-1, 4096)
    row = torch.ones(4096)
    # Several ways to read it all: which one comes nearest to the memory's limit depends on the processor.
    readers = (buffer.sum, buffer.amax, lambda: wide @ row)
    bandwidth = _BUFFER / min(best(reader) for reader in readers)
    x = torch.randn(_SIZE, _SIZE)
    codes = torch.randint(-100, 100, (_SIZE, _SIZE), dtype=torch.int8)
    operations = 2 * _SIZE**3
    return Limits(bandwidth, operations / best(lambda: x @ x), operations / best(lambda: torch._int_mm(codes, codes)))


if __name__ == "__main__":
    print(json.dumps(asdict(_measure())))
