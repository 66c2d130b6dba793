"""The tensors of a checkpoint's files, by the names that it is published with."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.errors import CheckpointError
from lmdeploy.turbomind.gguf.numbers import stored_numbers
from lmdeploy.turbomind.gguf.towers import LINK, read_tower
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.turbomind.text_part import is_of_text

if TYPE_CHECKING:
    import torch


def seeing_tensors(checkpoint: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield name and values of all tensors but those of the text part.

    Raises `CheckpointError` if those of a GGUF file are stored in codes that are not read.
    """
    from safetensors import safe_open

    if (checkpoint / LINK).exists():
        yield from _tower_tensors(checkpoint / LINK)
        return
    for file in read_checkpoint(checkpoint).files:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 (the file is no mapping)
                if not is_of_text(name):
                    yield name, content.get_tensor(name)


def rows_of_tensor(checkpoint: Path, name: str, rows: Sequence[int]) -> "torch.Tensor":
    """Return rows of one tensor ``[rows, columns]`` without reading the others."""
    import torch

    index = read_checkpoint(checkpoint)
    if name not in index.tensors:
        raise CheckpointError(checkpoint, [f"tensor {name} is missing"])
    whole = index.opened(name).get_slice(name)
    return torch.cat([whole[row : row + 1] for row in rows])


def _tower_tensors(file: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors of a vision tower in a GGUF file, of 16 bits where it has no more."""
    import torch

    narrow = {"F16": torch.float16, "BF16": torch.bfloat16}
    tower = read_tower(file)
    found: dict[str, dict[int, torch.Tensor]] = {}
    for name, info in tower.header.tensors.items():
        published = tower.published(name)
        if published is None:
            continue
        try:
            numbers = torch.from_numpy(stored_numbers(file, info, name)).reshape(info.shape)
        except ValueError as error:
            raise CheckpointError(file.resolve(), [str(error)]) from error
        if heads := tower.turned_heads(name):
            numbers = numbers.reshape(heads, -1, 2, info.shape[1]).transpose(1, 2).reshape(info.shape)
        numbers = numbers - tower.tower.added.get(published[0], 0.0)
        found.setdefault(published[0], {})[published[1]] = numbers.to(narrow.get(info.dtype, torch.float32))
    for name, parts in found.items():
        whole = [parts[index] for index in sorted(parts)]
        if len(whole) == 1:
            yield name, whole[0]
        else:  # the kernels of a convolution over two frames, or rows
            yield name, torch.stack(whole, dim=2) if whole[0].dim() == 4 else torch.cat(whole)
