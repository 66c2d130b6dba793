"""What a stage's process knows: where it is, what was measured before it, and where it notes what it finds."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu_check.journal import append, read

JOURNAL = "gpu_check.jsonl"
_LIBRARY_USES = ("scales", "experts", "prompts", "latents")  # of the emulation
RANDOM_LLAMA = {"LlamaForCausalLM": "tools.gpu_check.work.random_llama.RandomLlama"}  # for the PyTorch engine


class LeftOut(Exception):
    """A stage has nothing to do here, and says why."""


@dataclass(frozen=True)
class Context:
    """A stage on this machine.

    Attributes
    ----------
    folder
        Of the results.
    stage
        Its name.
    is_dry_run
        Kernels run under the emulation, on tiny shapes.
    """

    folder: Path
    stage: str
    is_dry_run: bool

    @classmethod
    def of_process(cls) -> Context:
        """Return the context that the environment describes."""
        variables = os.environ
        return cls(
            Path(variables["GPU_CHECK_FOLDER"]),
            variables.get("GPU_CHECK_STAGE", ""),
            bool(variables.get("GPU_CHECK_DRY_RUN")),
        )

    @property
    def torch_device(self) -> str:
        """Where torch computes."""
        return "cpu" if self.is_dry_run else "cuda"

    def note(self, row: str, value: float | str) -> None:
        """Keep what was found, and print it."""
        print(f"{row}: {value}", flush=True)
        append(self.folder / JOURNAL, {"stage": self.stage, "row": row, "value": value})

    def found(self, row: str) -> float:
        """Return what an earlier stage has found.

        Raises
        ------
        LeftOut
            It has found nothing.
        """
        for done in read(self.folder / JOURNAL).values():
            if row in done.findings:
                return float(done.findings[row])
        raise LeftOut(f"it needs {row!r}, which was not measured")

    def native(self) -> Any:
        """Return the compiled module with the kernels, and have engines made from now on use it.

        A dry run's has libraries, which the emulation plays.
        """
        module = importlib.import_module(f"tests.kernels.{'_cuda_emulated' if self.is_dry_run else '_cuda_device'}")
        if self.is_dry_run:
            for use in _LIBRARY_USES:
                module.set_library(use, 1)
        importlib.import_module("lmdeploy.turbomind.engine")._turbomind = module  # type: ignore[attr-defined]
        return module

    @property
    def cache(self) -> Path:
        """Where what is made for measuring is; it is no result."""
        return Path(os.environ["LMDEPLOY_CACHE"])

    def model(self, name: str, layers: int = 0) -> Path:
        """Return the directory of a checkpoint of a shape, made now if it is not there; ``layers``: 0 for its own."""
        from tools.bench.shapes import SHAPES, tiny
        from tools.gpu_check.checkpoints import write

        shape = tiny(SHAPES[name]) if self.is_dry_run else SHAPES[name]
        more = f"{f'-{layers}-layers' if layers else ''}{'-tiny' if self.is_dry_run else ''}"
        directory = self.cache / "shapes" / f"{name}{more}"
        if not (directory / "config.json").exists():
            write(shape.having(num_hidden_layers=layers) if layers else shape, directory)
        return directory
