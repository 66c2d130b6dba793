"""The tensors of a checkpoint's files."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.turbomind.text_part import is_of_text

if TYPE_CHECKING:
    import torch


def seeing_tensors(checkpoint: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield name and values of all tensors but those of the text part."""
    from safetensors import safe_open

    for file in read_checkpoint(checkpoint).files:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 (the file is no mapping)
                if not is_of_text(name):
                    yield name, content.get_tensor(name)
