"""Mapping of LoRA's layer names to a model's linear layers: adapters trained for those add to these.

A model says so by loading: its ``load_weights`` hands each tensor, or parts of it, to the layers. `let_adapt` has it do
that again with a column of numbers in the place of each matrix; where a number arrives is where that output goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.adapters import AdapterTable

_WEIGHT = ".weight"
Shape = tuple[int, int]


@dataclass(frozen=True)
class AdaptedPart:
    """Outputs of a linear layer that are outputs of a layer of the checkpoint.

    ``source``: the checkpoint's layer. ``name``: what the table of adapters calls the part. ``outputs``: which of the
    linear layer's own outputs.
    """

    source: str
    name: str
    outputs: slice


class SourceTrace:
    """Follows the tensors of a checkpoint into linear layers."""

    def __init__(self, adapters: AdapterTable | None = None) -> None:
        # ``[outputs, inputs]`` of the matrices that went to linear layers, by the tensor's name
        self.shapes: dict[str, Shape] = {}
        # None: values are loaded, and the shapes of matrices noted. Else their outputs' numbers come in their place
        self.adapters = adapters
        self._name = ""
        self._shape: Shape | None = None

    def begin(self, name: str, tensor: torch.Tensor) -> None:
        """Say which tensor is loaded next."""
        self._name = name
        self._shape = (tensor.shape[0], tensor.shape[1]) if tensor.dim() == 2 else None

    def see(self) -> None:
        """Note that this tensor goes to the weight of a linear layer."""
        if self._name.endswith(_WEIGHT) and self._shape is not None:
            self.shapes[self._name] = self._shape

    def take(self, outputs: slice, numbers: torch.Tensor, inputs: slice) -> AdaptedPart:
        """Return the part of a layer that this tensor comes from, for adapters.

        Raises `ValueError` if it is not outputs that arrived. ``outputs``: of the linear layer: where they arrive.
        ``numbers``: ``[outputs, 1]``: which outputs of the checkpoint's layer they are. ``inputs``: which of its inputs
        this rank has.
        """
        assert self.adapters is not None
        if numbers.dtype != torch.int64 or numbers.shape != (outputs.stop - outputs.start, 1):
            raise ValueError(f"{self._name} is changed while it is loaded")
        source = self._name.removesuffix(_WEIGHT)
        return AdaptedPart(source, self.adapters.divide(source, numbers[:, 0].clone(), inputs), outputs)


_current: ContextVar[SourceTrace | None] = ContextVar("source_trace", default=None)


def current_trace() -> SourceTrace | None:
    """Return the trace of source tensors; None: none is recorded."""
    return _current.get()


@contextmanager
def tracing(trace: SourceTrace) -> Iterator[SourceTrace]:
    """Have ``trace`` follow what is loaded as long as the block runs."""
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def let_adapt(
    model: Any, layers: Sequence[nn.Module], shapes: dict[str, Shape], adapters: AdapterTable
) -> dict[str, Shape]:
    """Let adapters add to linear layers of a model.

    Raises `ValueError` if the model cannot load numbers in the place of weights. Returns for the layers of the
    checkpoint, in whose names ``*`` stands for a number: the shape of the weight. ``model``: its weights are loaded.
    ``layers``: those of its linear layers that compute all rows of a step, and so may take adapters. ``shapes``:
    `SourceTrace.shapes` of the loading. ``adapters``: what the layers ask.
    """

    def numbers(trace: SourceTrace) -> Iterator[tuple[str, torch.Tensor]]:
        for name, (outputs, _) in shapes.items():
            column = torch.arange(outputs)[:, None]
            trace.begin(name, column)
            yield name, column

    try:
        with tracing(SourceTrace(adapters)) as trace:
            model.load_weights(numbers(trace))
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError, IndexError) as error:
        raise ValueError(f"{type(model).__name__}.load_weights: {type(error).__name__}: {error}") from error
    sources = {part.source for module in layers for part in _parts_of(module)}
    unfit = {part.source for module in set(model.modules()) - set(layers) for part in _parts_of(module)}
    return {pattern_of(source): shapes[source + _WEIGHT] for source in sources - unfit}


def pattern_of(name: str) -> str:
    """Return a layer's name with ``*`` in the place of numbers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _parts_of(module: nn.Module) -> Sequence[AdaptedPart]:
    parts: Sequence[AdaptedPart] = getattr(module, "adapted", ())
    return parts
