"""Tensor names of a text part in the checkpoint of the whole model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TEXT_TENSORS = "text_part.json"


@dataclass(frozen=True)
class TextTensors:
    """Where a text part's tensors are."""

    checkpoint: Path  # the whole model's
    names: Mapping[str, str]  # from the names there to those of the text part
    # Which number of a position turns each pair of the rotation (`RopeSpec.axes`); empty: it has one
    axes: tuple[int, ...]
    # How many of the first layers add features of images to their output (`ImagesSpec.deepstack_layers`)
    deeper_layers: int = 0


def text_tensors(directory: Path) -> TextTensors | None:
    """Return where the tensors of a text part's folder are; None for any other checkpoint."""
    file = directory / TEXT_TENSORS
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return TextTensors(Path(content["checkpoint"]), content["names"], tuple(content["axes"]), content["deeper_layers"])
