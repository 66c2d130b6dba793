"""Process group of tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """One of the processes that run a model: the own one.

    ``rank``, ``count``: which of how many it is.
    """

    rank: int = 0
    count: int = 1

    def slice_of(self, size: int, what: str) -> slice:
        """Return this rank's part of ``size`` things; raise `ValueError` if they cannot be divided."""
        if size % self.count:
            raise ValueError(f"tp={self.count} does not divide {what}, {size}")
        part = size // self.count
        return slice(self.rank * part, (self.rank + 1) * part)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks, in place."""
        if self.count > 1:
            dist.all_reduce(x)
        return x

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        """Broadcast a tensor from the first rank, in place, and return it."""
        if self.count > 1:
            dist.broadcast(x, 0)
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated along the last axis."""
        if self.count == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.count)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)


def backend_for(device: torch.device) -> str:
    """Return the communication backend of ranks on a device: NCCL on GPUs, one each, gloo elsewhere."""
    return "nccl" if device.type == "cuda" else "gloo"


def join(rank: int, count: int, rendezvous: str, device: torch.device) -> Ranks:
    """Meet the other ranks.

    ``rank``, ``count``: which of how many this process is. ``rendezvous``: a file that all of them can reach and
    nobody else uses. ``device``: where this rank computes.
    """
    if count > 1:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # which the collectives take
        dist.init_process_group(backend_for(device), init_method=f"file://{rendezvous}", rank=rank, world_size=count)
    return Ranks(rank, count)
