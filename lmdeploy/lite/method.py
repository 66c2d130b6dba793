"""Interface between a quantization method and its driver (``lmdeploy.lite.layer_runs``)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from lmdeploy.lite.scaled_groups import ScaledGroup
from lmdeploy.lite.settings import RunSettings


class Observed(Protocol):
    """Statistics of the inputs of a linear layer."""

    count: int

    def add(self, x: Tensor) -> None:
        """Take note of inputs ``[..., in]``."""

    def divide_by(self, scales: Tensor) -> None:
        """Become what there would be to remember of the same inputs divided by ``scales`` ``[in]``."""


Seen = TypeVar("Seen", bound=Observed)


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight ``[out, in]`` as codes."""

    rows: Mapping[str, Tensor]  # tensors with a row for each output
    # Tensors that are those of all outputs, by the ends of their names
    shared: Mapping[str, Tensor] = field(default_factory=dict)


class Method(ABC, Generic[Seen]):
    """How weights are quantized."""

    name: str  # of the command; the folder for unfinished work is named after it
    settings: RunSettings  # what the user chose

    def fitted_to(self, shapes: Mapping[str, tuple[int, int]]) -> "Method[Seen]":
        """Return the method for weights of these names and shapes ``[out, in]``, with sizes chosen that were left open.

        Raises `ValueError` if the user chose a size that does not fit; names those that do.
        """
        return self

    def holds(self, shape: tuple[int, int]) -> bool:
        """Return whether the format has a form for a weight ``[out, in]``; else it stays numbers."""
        return True

    @abstractmethod
    def observe(self, in_features: int, device: torch.device) -> Seen:
        """Return empty statistics for a layer's inputs."""

    def bytes_seen(self, in_features: int) -> int:
        """Return how much memory what has been seen of a layer's inputs takes."""
        return 8 * in_features

    def scales(self, group: ScaledGroup, weights: Sequence[Tensor], observed: Seen) -> Tensor | None:
        """Return the factors of the weights, and divisors of the inputs, of a group, ``[in]``; None: none."""
        return None

    @abstractmethod
    def quantized(self, weight: Tensor, observed: Seen, rows_left_whole: int) -> QuantizedWeight:
        """Return a weight ``[out, in]`` as codes; no numbers of its first rows may be cut off."""

    @abstractmethod
    def packed(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the stored tensors of some rows of :class:`QuantizedWeight`, by the ends of their names."""

    @abstractmethod
    def quantization_config(self, left: Sequence[str]) -> dict[str, Any]:
        """Return ``quantization_config`` of config.json; ``left`` are the modules that are not quantized."""
