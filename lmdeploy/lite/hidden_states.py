"""Hidden states between decoder layers, in files: those of a long text take more memory than a layer."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class HiddenStates:
    """The inputs of each layer for batches of a text, float32, one file a layer."""

    def __init__(self, folder: Path, shapes: list[tuple[int, int]], width: int, device: torch.device) -> None:
        self._folder = folder
        self._shapes = shapes  # samples and tokens of each batch
        self._width = width  # numbers of a token
        self._device = device

    def has(self, layer: int) -> bool:
        """Return whether the inputs of a layer are there, whole."""
        return self._path(layer).is_file()

    def write(self, layer: int, batches: Iterable[Tensor]) -> None:
        """Keep the inputs of a layer, ``[samples, tokens, width]`` each; they appear whole or not at all."""
        scratch = self._path(layer).with_suffix(".part")
        with scratch.open("wb") as file:
            for batch in batches:
                file.write(batch.detach().float().cpu().contiguous().numpy().tobytes())
        scratch.replace(self._path(layer))

    def read(self, layer: int) -> Iterator[Tensor]:
        """Yield the inputs of a layer, a batch at a time."""
        with self._path(layer).open("rb") as file:
            for samples, tokens in self._shapes:
                shape = (samples, tokens, self._width)
                values = np.fromfile(file, dtype=np.float32, count=samples * tokens * self._width)
                yield torch.from_numpy(values.reshape(shape)).to(self._device)

    def drop(self, layer: int) -> None:
        """Forget the inputs of a layer."""
        self._path(layer).unlink(missing_ok=True)

    def _path(self, layer: int) -> Path:
        return self._folder / f"hidden-{layer:05}.bin"
