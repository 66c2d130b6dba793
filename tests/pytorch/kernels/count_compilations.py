"""Which kernels a worker's steps need, before its first step and after it, as Triton's own cache keys say.

The driver says which GPU there is and can do nothing else: a kernel that the cache lacks is noted, and neither compiled
nor run, so that tensors hold zeros.

Prints a line for each model and cache: its name, how many were needed before, and the names of those needed after.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

from lmdeploy.pytorch import gpu_cache, quantized_gpu_layers, step_runner
from lmdeploy.pytorch.nn import device as nn_device
from lmdeploy.pytorch.step_devices import GpuSteps
from tests.pytorch.test_quantized_models import WIDE
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint
from tests.support.scaled_checkpoints import FLOAT8, Form
from tests.support.triton_target import TargetDriver
from tests.support.worker_steps import Part, StepDriver

CAPABILITY = 90
ROWS, SEQUENCES, BLOCKS = 200, 24, 12
FORMS = {
    "awq": Scheme("awq"),
    "int8": Form("smooth_quant", torch.int8, "channel", "scale"),
    "fp8": Form("fp8", FLOAT8, "block", "weight_scale_inv"),
}


class Missing:
    """Notes the kernels that Triton's cache lacks, each once.

    ``names``: of kernels that were missing since it was last emptied.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._seen: set[object] = set()

    def __call__(self, *, key: object, fn: Any, **_: Any) -> bool:
        if (called := (fn.module, fn.name, str(key))) not in self._seen:
            self._seen.add(called)
            self.names.append(f"{fn.module}.{fn.name}")
        return True  # it need not be compiled

    def take(self) -> list[str]:
        """Return the names, and forget them."""
        taken, self.names = self.names, []
        return taken

    def clear(self) -> None:
        """Begin as a process does."""
        self._seen.clear()


def checkpoint(kind: str, directory: Path) -> Path:
    """Write a tiny model."""
    name = {"moe": "Qwen3MoeForCausalLM", "soft capped": "Gemma2ForCausalLM"}.get(kind, "LlamaForCausalLM")
    make(directory / "plain", name, **WIDE | {"num_hidden_layers": 1})
    if kind not in FORMS:
        return directory / "plain"
    quantize_checkpoint(directory / "plain", directory / "coded", FORMS[kind])
    return directory / "coded"


def steps() -> Iterator[list[Part]]:
    """Yield prompts, mixed steps and steps of decoding, of sizes that nothing was prepared for by name."""
    for sequences in (1, 3, 7, 16, 17, 24):
        yield [Part(sequence, 0, [5] * (1 + 5 * sequence % 8)) for sequence in range(sequences)]
        for at in (8, 9):
            yield [Part(sequence, at, [5]) for sequence in range(sequences)]
    for rows in (2, 5, 16, 17, 33, 64, 100, 191, 199):
        yield [Part(30 + rows, 0, [7] * rows, needs_all_logits=rows < 20)]
    yield [Part(229, 190, [7] * 2), Part(0, 10, [3])]  # a table of as many blocks as there may be
    yield [Part(229, 192 - 1, [7]), Part(3, 10, [3]), Part(4, 10, [3] * 9)]


def zeroed(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory of zeros in place of ``make``, which leaves memory as it was."""
    return lambda *args, **options: make(*args, **options).zero_()


def main() -> None:
    triton.runtime.driver.set_active(TargetDriver(CAPABILITY))
    missing = Missing()
    triton.knobs.runtime.jit_cache_hook = missing
    launch = JITFunction.run

    def record_only(function: JITFunction, *args: Any, **options: Any) -> Any:
        options.pop("warmup", None)
        return launch(function, *args, warmup=True, **options)

    JITFunction.run = record_only
    step_runner.step_device = lambda *_: GpuSteps(torch.device("cpu"))
    nn_device.runs_kernels = lambda _: True
    # Self-checks, whose kernels do not run here either, would choose others.
    gpu_cache.uses_native = lambda *_: True
    quantized_gpu_layers.uses_native = lambda _: True
    prepares = sys.argv[1] == "prepared"
    torch.empty, torch.empty_like = zeroed(torch.empty), zeroed(torch.empty_like)
    torch.Tensor.new_empty = zeroed(torch.Tensor.new_empty)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("llama", "moe", "soft capped", *FORMS):
            directory = checkpoint(kind, Path(folder) / kind)
            for quant_policy in (0, 4):
                missing.clear()
                driver = StepDriver(
                    directory, VOCAB, HIDDEN, dtype="bfloat16", by_transformers=kind in FORMS, quant_policy=quant_policy
                )
                driver.tokens = driver.tokens[:ROWS]
                if prepares:
                    driver.runner.prepare(SEQUENCES, BLOCKS)
                before = missing.take()
                for parts in steps():
                    driver.step(*parts)
                print(f"{kind}, {quant_policy}", len(before), *missing.take(), sep=": ")


main()
