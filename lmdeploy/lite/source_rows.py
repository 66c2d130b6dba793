"""Mapping from rows of engine tensors to rows of checkpoint tensors, from the manifest's expressions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Mapping[str, Any]  # an expression as manifest.json has it
_MOVES = ("load", "concat", "slice", "permute", "reshape")


def loads_in(tree: Tree) -> Iterator[str]:
    """Yield the checkpoint tensors that an expression reads."""
    if tree["op"] == "load":
        yield tree["name"]
    for argument in tree.get("args", ()):
        yield from loads_in(argument)


def operations_in(tree: Tree) -> Iterator[str]:
    """Yield the name of each operation of an expression."""
    yield tree["op"]
    for argument in tree.get("args", ()):
        yield from operations_in(argument)


def moves_only(tree: Tree) -> bool:
    """Return whether an expression puts numbers elsewhere and leaves them as they are."""
    return all(operation in _MOVES for operation in operations_in(tree))


def evaluate(tree: Tree, load: Callable[[str], Tensor], reshaped: Callable[[Sequence[int]], Sequence[int]]) -> Tensor:
    """Return the tensor that an expression describes.

    ``load``: from a name to the tensor. ``reshaped``: from the shape of a reshaping to that to use.
    """
    if tree["op"] == "load":
        return load(tree["name"])
    parts = [evaluate(argument, load, reshaped) for argument in tree["args"]]
    match tree["op"]:
        case "concat":
            return torch.cat(parts)
        case "slice":
            return parts[0].narrow(tree["dim"], tree["begin"], tree["end"] - tree["begin"])
        case "permute":
            return parts[0].permute(tree["dims"])
        case _:
            return parts[0].reshape(*reshaped(tree["shape"]))


class RowMap:
    """Where each row of an engine tensor ``[out]`` or ``[out, in]`` is in the checkpoint.

    Raises `ValueError` if the expression takes rows apart. ``tree``: the engine tensor's expression. ``shapes``: of the
    checkpoint's tensors.
    """

    def __init__(self, tree: Tree, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.names = list(dict.fromkeys(loads_in(tree)))  # the checkpoint's tensors
        if not moves_only(tree) or any(len(shapes[name]) > 2 for name in self.names):
            raise ValueError(f"{', '.join(self.names)}: rows are taken apart")
        first, starts = 0, {}
        for name in self.names:
            starts[name] = first
            first += shapes[name][0]
        is_matrix = len(shapes[self.names[0]]) == 2

        def numbers(name: str) -> Tensor:
            count = shapes[name][0]
            rows = torch.arange(starts[name], starts[name] + count)
            return rows[:, None] if is_matrix else rows

        try:
            every = evaluate(tree, numbers, lambda shape: (*shape[:-1], 1) if is_matrix else shape)
        except RuntimeError as error:
            raise ValueError(f"{', '.join(self.names)}: rows are taken apart") from error
        if is_matrix and every.shape[1:] != (1,):
            raise ValueError(f"{', '.join(self.names)}: rows are taken apart")
        flat = every.flatten()
        bounds = torch.tensor([starts[name] for name in self.names])
        # For each row, the number of its tensor in ``names``
        self.file = torch.searchsorted(bounds, flat, right=True) - 1
        self.row = flat - bounds[self.file]  # for each row, its number there

    def of(self, name: str) -> tuple[Tensor, Tensor]:
        """Return, for each row of a checkpoint tensor that the engine has, one of the engine's, and its number."""
        rows = (self.file == self.names.index(name)).nonzero().flatten()
        row, which = torch.unique(self.row[rows], return_inverse=True)
        return torch.zeros_like(row).scatter_reduce_(0, which, rows, "amin", include_self=False), row
