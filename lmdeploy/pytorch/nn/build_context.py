"""Context in which layers are built: their part of the model, and the kernels of a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.ranks import Ranks


@dataclass(frozen=True)
class BuildContext:
    """The surroundings of a model that is being built."""

    ranks: Ranks = field(default_factory=Ranks)  # this process among those that the model is spread over
    kernels: Kernels | None = None  # the engine's operators for CPUs; None: plain PyTorch


_current: ContextVar[BuildContext | None] = ContextVar("build_context", default=None)


def build_context() -> BuildContext:
    """Return the surroundings of the model that is being built; outside of `building`, one rank and plain PyTorch."""
    return _current.get() or BuildContext()


@contextmanager
def building(context: BuildContext) -> Iterator[None]:
    """Build layers for ``context`` as long as the block runs."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
