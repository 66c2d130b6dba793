"""Device-specific parts of a step: the cache, the place of tensors, and the transfer of block tables."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lmdeploy.extras import require
from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.paged import LayerShape, PagedCache, StateShape

# Columns of the channel's spans (backend_cpp/model/worker/step_channel.h).
FIRST_TOKEN, COUNT, POSITION, PROMPT_LEN, FIRST_BLOCK, BLOCKS, LOGITS_FROM, ADAPTER = range(8)

logger = logging.getLogger(__name__)

Ints = np.ndarray[Any, Any]  # of a step, as the channel has them


class StepDevice(Protocol):
    """A device that runs steps."""

    device: torch.device  # where tensors are
    kernels: Kernels | None  # the engine's operators for CPUs; None: they are not for this device

    def cache_of(
        self, shapes: dict[int, LayerShape], quant_policy: int, dtype: torch.dtype, states: dict[int, StateShape]
    ) -> Any:
        """Return an empty cache."""

    def block_offsets(self, spans: Ints, blocks: Ints, block_len: int) -> Ints:
        """Make a step's block tables known, and return them where attention takes them from the step."""

    def free_memory(self) -> int:
        """Return how many bytes the cache and the steps may use; 0: the host's, which the engine knows."""


class CpuSteps:
    """Steps on the CPU, by the engine's operators."""

    def __init__(self, kernels: Kernels) -> None:
        self.device = torch.device("cpu")
        self.kernels: Kernels | None = kernels
        self._kernels = kernels

    def cache_of(
        self, shapes: dict[int, LayerShape], quant_policy: int, dtype: torch.dtype, states: dict[int, StateShape]
    ) -> PagedCache:
        """Return an empty cache."""
        self._cache = PagedCache(shapes, quant_policy, dtype, self._kernels, states)
        return self._cache

    def block_offsets(self, spans: Ints, blocks: Ints, block_len: int) -> Ints:
        """Hand the tables to the operators, and return none."""
        self._kernels.set_spans(spans, blocks, block_len)
        self._kernels.set_states(spans, blocks, self._cache.state_pages)
        return np.empty(0, np.int64)

    def free_memory(self) -> int:
        """Return 0."""
        return 0


class GpuSteps:
    """Steps on a GPU, by the kernels in the Triton language."""

    kernels: Kernels | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def cache_of(
        self, shapes: dict[int, LayerShape], quant_policy: int, dtype: torch.dtype, states: dict[int, StateShape]
    ) -> Any:
        """Return an empty cache; models with states refuse the GPU themselves."""
        del states
        require("pytorch", "the PyTorch engine on a GPU")
        from lmdeploy.pytorch.gpu_cache import GpuPagedCache

        return GpuPagedCache(shapes, quant_policy, dtype, self.device)

    def block_offsets(self, spans: Ints, blocks: Ints, block_len: int) -> Ints:
        """Return ``[spans, most blocks]`` int64, 0 after a sequence's last block."""
        first, count = spans[:, FIRST_BLOCK, None], spans[:, BLOCKS, None]
        index = np.arange(max(1, int(count.max(initial=0))))
        table: Ints = np.where(index < count, blocks[np.minimum(first + index, len(blocks) - 1)], 0)
        return table

    def free_memory(self) -> int:
        """Return the GPU's free memory."""
        return int(torch.cuda.mem_get_info(self.device)[0])


def step_device(device: str, rank: int, ranks: int, kernels: Kernels) -> StepDevice:
    """Return the device that runs a model, or this rank of it: the GPU of the rank's number, or the CPU for all.

    Raises `ValueError` if it cannot run on a GPU, and that is what was asked for. ``device``: ``cpu``, ``cuda``, or
    ``auto``: a GPU where there is one. ``rank``, ``ranks``: this process among how many that run it. ``kernels``: the
    engine's operators for CPUs.
    """
    if device == "cpu":
        return CpuSteps(kernels)
    problem = None
    if not torch.cuda.is_available():
        problem = f"PyTorch {torch.__version__} (CUDA {torch.version.cuda or 'none'}) finds no GPU"
        if (driver := _driver_version()) is not None:
            problem += f", though there is driver {driver}"
    elif torch.cuda.device_count() < ranks:
        problem = f"tp={ranks} needs a GPU for each rank, PyTorch finds {torch.cuda.device_count()}"
    if problem is None:
        return GpuSteps(torch.device("cuda", rank))
    if device == "cuda":
        raise ValueError(f"device_type must be cpu: {problem}")
    if _driver_version() is not None:
        logger.warning("the model runs on the CPU: %s", problem)
    return CpuSteps(kernels)


@contextmanager
def memory_for(what: str, advice: str) -> Iterator[None]:
    """Have a GPU without memory enough said in one sentence, as a ValueError.

    ``what``: what the memory is for. ``advice``: what takes less.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = ". ".join(str(error).split(". ")[:2]).strip(".")
        versions = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
        raise ValueError(f"{what} needs more memory than the GPU has left ({reason}; {versions}): {advice}") from error


_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None where there is none."""
    try:
        text = _DRIVER_FILE.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Module.*?\s(\d+(?:\.\d+)+)", text)
    return found[1] if found else "of an unknown version"
