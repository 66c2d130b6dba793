"""Context of a step's process: its folder, its build and its results."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.checkpoints import write
from tools.bench.shapes import SHAPES, Shape, tiny
from tools.bench.workload import TokenRequest
from tools.gpu_check.runner import append, read

_LIBRARY_USES = ("scales", "experts", "prompts", "latents")  # of the emulation


@dataclass(frozen=True)
class Context:
    """A step on this machine."""

    folder: Path  # of the results
    step: str  # its name
    is_dry_run: bool  # kernels run under the emulation, on tiny shapes
    # ``old`` or ``new``, and its compiled module; empty: the one of this checkout
    side: str = ""
    module: str = ""

    @classmethod
    def of_process(cls) -> Context:
        """Return the context that the environment describes."""
        names = ("STEP", "DRY_RUN", "SIDE", "MODULE")
        step, is_dry_run, side, module = (os.environ.get(f"GPU_CHECK_{name}", "") for name in names)
        return cls(Path(os.environ["GPU_CHECK_FOLDER"]), step, bool(is_dry_run), side, module)

    @property
    def torch_device(self) -> str:
        """Where torch computes."""
        return "cpu" if self.is_dry_run else "cuda"

    def record(self, row: str, value: float | str) -> None:
        """Keep what was found, and print it."""
        print(f"{row}: {value}", flush=True)
        append(self.folder, step=self.step, row=row, value=value, side=self.side)

    def found(self, row: str) -> float:
        """Return the result of an earlier step; raise `RuntimeError` if it has found nothing."""
        for line in reversed(read(self.folder)):
            if line.get("row") == row:
                return float(line["value"])
        raise RuntimeError(f"it needs {row!r}, which was not measured: take the step limits along")

    def native(self) -> Any:
        """Return the compiled module with the kernels, and have engines made from now on use it.

        A dry run's has libraries, which the emulation plays.
        """
        name = "_cuda_emulated" if self.is_dry_run else "_cuda_device"
        if self.module:
            spec = importlib.util.spec_from_file_location(name, self.module)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(f"tests.kernels.{name}")
        if self.is_dry_run:
            for use in _LIBRARY_USES:
                module.set_library(use, 1)
        importlib.import_module("lmdeploy.turbomind.engine")._turbomind = module  # type: ignore[attr-defined]
        return module

    @property
    def shapes(self) -> Path:
        """Where checkpoints are that are made for measuring."""
        return Path(os.environ["LMDEPLOY_CACHE"]) / "shapes"

    def shape(self, name: str) -> Shape:
        """Return a shape, in a dry run with everything small."""
        return tiny(SHAPES[name]) if self.is_dry_run else SHAPES[name]

    def model(self, name: str, layers: int = 0) -> Path:
        """Return the directory of a checkpoint of a shape, made now if it is not there; ``layers``: 0 for its own."""
        shape = self.shape(name).having(**({"num_hidden_layers": layers} if layers else {}))
        size = shape.config["num_hidden_layers"]
        directory = self.shapes / f"{name}-{size}{'-tiny' if self.is_dry_run else ''}"
        if not (directory / "config.json").exists():
            write(shape, directory)
        return directory


def random_prompts(generator: random.Random, lengths: Sequence[tuple[int, int]]) -> list[TokenRequest]:
    """Return requests of random tokens, of prompts and responses of these lengths."""
    return [TokenRequest(tuple(generator.choices(range(256), k=prompt)), output) for prompt, output in lengths]
