"""Low-rank adapters of a model on PyTorch: which tokens of a step have which, and what that adds to a layer.

``y += scale B A x`` (Hu et al., 2021, arXiv 2106.09685), for the tokens of a step that name the adapter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import lmdeploy._turbomind as _turbomind


@dataclass(frozen=True)
class LowRank:
    """Low-rank update of this rank's part of a layer."""

    down: torch.Tensor  # lora_A, ``[rank, in_features]`` float32
    up: torch.Tensor  # lora_B times the adapter's scale, ``[out_features, rank]`` float32


@dataclass(frozen=True)
class LayerPart:
    """Part of a layer of the checkpoint on one rank; see `AdapterTable.divide`."""

    name: str
    outputs: slice | torch.Tensor
    inputs: slice


class AdapterTable:
    """The adapters in memory, and the tokens of the step that runs."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device
        self._parts: dict[str, list[LayerPart]] = {}
        self._loaded: dict[int, dict[str, LowRank]] = {}
        self._rows: list[tuple[dict[str, LowRank], torch.Tensor]] = []
        self._row_count = 0

    def divide(self, layer: str, outputs: slice | torch.Tensor, inputs: slice) -> str:
        """Say which part of a layer this rank has, before adapters are loaded.

        ``layer``: its name in the checkpoint. It may be said several times, of a layer that is several in the model.
        ``outputs``, ``inputs``: which of its outputs and inputs. Returns what `add` calls the part: as the layer, where
        there is one.
        """
        parts = self._parts.setdefault(layer, [])
        parts.append(LayerPart(f"{layer}[{len(parts)}]" if parts else layer, outputs, inputs))
        return parts[-1].name

    def load(self, slot: int, directory: str) -> None:
        """Read an adapter; steps name it by a number from 1 on."""
        loaded = {}
        parts = {_turbomind.inner_layer(layer): found for layer, found in self._parts.items()}
        for name, (down, up, scale) in _turbomind.read_adapter(directory).items():
            if name not in parts:
                raise ValueError(f"{directory}: this model takes no adapter in its layer {name}")
            for part in parts[name]:
                loaded[part.name] = LowRank(
                    torch.from_numpy(down)[:, part.inputs].contiguous().to(self._device),
                    (torch.from_numpy(up)[part.outputs].contiguous() * scale).to(self._device),
                )
        self._loaded[slot] = loaded

    def drop(self, slot: int) -> None:
        """Forget an adapter."""
        self._loaded.pop(slot, None)

    def begin_step(self, adapters: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
        """Say which adapter each row of the next step has; 0: none."""
        self._rows, self._row_count = [], len(adapters)
        if self._loaded:
            self._rows = [
                (self._loaded[int(slot)], torch.from_numpy(np.flatnonzero(adapters == slot)).to(self._device))
                for slot in np.unique(adapters)
                if slot
            ]

    @property
    def is_used(self) -> bool:
        """Whether a row of the step has an adapter."""
        return bool(self._rows)

    def add(self, layer: str, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add what the step's adapters say for a layer; raise `ValueError` if these are not all tokens of the step.

        ``layer``: its name in the checkpoint, or that of its part (`divide`). ``x``, ``y``: of this rank's part: ``[1,
        tokens, in_features]`` and, changed, ``[1, tokens, out_features]``; both also without the first axis.
        """
        if self._rows and x.shape[-2] != self._row_count:
            raise ValueError(f"{layer} takes no adapter: it computes {x.shape[-2]} of {self._row_count} rows")
        for layers, rows in self._rows:
            found = layers.get(layer)
            if found is None:
                continue
            added = (x.reshape(self._row_count, -1)[rows].float() @ found.down.t()) @ found.up.t()
            (y[0] if y.dim() == 3 else y).index_add_(0, rows, added.to(y.dtype))
