"""Decoders of `transformers` whose linear layers compute something else for rows of images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass
class ImageRows:
    """Which tokens of the text that is run are of images."""

    positions: list[int] = field(default_factory=list)


class SplitLinear(nn.Module):  # type: ignore[misc]
    """A linear layer, with ``change`` from inputs and outputs of the rows of images to what they give instead."""

    def __init__(self, text: nn.Module, rows: ImageRows, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.text, self.rows, self.change = text, rows, change

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch of one text ``[1, tokens, outputs]``."""
        y: Tensor = self.text(x).clone()
        positions = self.rows.positions
        if positions:
            y[0, positions] = self.change(x[0, positions], y[0, positions])
        return y


def instead(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a layer with other weights."""

    def change(x: Tensor, y: Tensor) -> Tensor:
        product = x @ weight.double().T
        return product if bias is None else product + bias.double()

    return change


def added(down: Tensor, up: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a layer's low-rank update."""
    return lambda x, y: y + x @ down.double().T @ up.double().T


def split(
    model: nn.Module, names: Sequence[str], change: Callable[[str], Callable[[Tensor, Tensor], Tensor]]
) -> ImageRows:
    """Have the linear layers of a model whose names end so compute what ``change`` of their whole names says."""
    rows = ImageRows()
    found = [name for name, _ in model.named_modules() if name.endswith(tuple(names))]
    for name in found:
        parent, _, attribute = name.rpartition(".")
        whole = model.get_submodule(parent)
        setattr(whole, attribute, SplitLinear(getattr(whole, attribute), rows, change(name)))
    return rows
