"""Asynchronous upload of a step's inputs to the device, in one copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_ALIGNMENT = 16
_BUFFERS = 3  # steps under way, and the one that is prepared


class Uploads:
    """Copies arrays from memory that the GPU reads by itself; on a CPU, plain copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device  # where they go
        self._is_gpu = device.type == "cuda"
        self._buffers = [_Buffer() for _ in range(_BUFFERS if self._is_gpu else 0)]
        self._next = 0

    def send(self, arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, torch.Tensor]:
        """Return them as tensors of their types, ready for what is launched later."""
        if not self._is_gpu:
            return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
        begins = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays.values())]).tolist()
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % _BUFFERS
        host = buffer.take(begins[-1])
        packed = host.numpy()
        for begin, array in zip(begins, arrays.values(), strict=False):
            packed[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        there = host.to(self._device, non_blocking=True)
        buffer.is_free.record()
        tensors = {}
        for begin, (name, array) in zip(begins, arrays.items(), strict=False):
            dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
            tensors[name] = there[begin : begin + array.nbytes].view(dtype).view(array.shape)
        return tensors


class _Buffer:
    """Pinned memory, and when it may be written again."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.is_free = torch.cuda.Event()

    def take(self, size: int) -> torch.Tensor:
        """Return this many bytes of it, once nothing is copied from them any more."""
        self.is_free.synchronize()
        if len(self._memory) < size:
            self._memory = torch.empty(2 * size, dtype=torch.uint8, pin_memory=True)
        return self._memory[:size]
