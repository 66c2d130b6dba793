"""A number's result does not depend on where in a tensor it is: the same bits in every prefix of a tensor."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional

from lmdeploy.pytorch.replacing.functions import batch_invariant

VALUES = 3 * torch.randn(256, generator=torch.Generator().manual_seed(0))
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu by tanh": partial(functional.gelu, approximate="tanh"),
    "softplus": functional.softplus,
    "elu": functional.elu,
    "mish": functional.mish,
    "sigmoid": torch.sigmoid,
    "sigmoid of a tensor": torch.Tensor.sigmoid,
}
# Functions that models' code uses as well, and PyTorch computes alike everywhere.
LEFT_ALONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "cos": torch.cos,
    "sin": torch.sin,
    "rsqrt": lambda x: x.abs().rsqrt(),
    "square": lambda x: x**2,
    "hardswish": functional.hardswish,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_prefix_has_the_bits_of_the_whole(name: str) -> None:
    made = batch_invariant(FUNCTIONS[name])
    whole = made(VALUES)
    assert torch.allclose(whole, FUNCTIONS[name](VALUES), rtol=1e-6, atol=1e-7)
    for count in range(len(VALUES)):
        assert torch.equal(made(VALUES[:count]), whole[:count])
        assert torch.equal(made(VALUES[count:]), whole[count:])


def test_rows_that_lie_apart_have_the_same_bits() -> None:
    made = batch_invariant(functional.silu)
    table = VALUES.view(16, 16)
    assert torch.equal(made(table.t()), made(table).t())
    assert torch.equal(made(table[:, 3:8]), made(table)[:, 3:8])


def test_in_place_means_in_place() -> None:
    x = VALUES[:37].clone()
    assert batch_invariant(functional.silu)(x, inplace=True) is x
    assert torch.equal(x, batch_invariant(functional.silu)(VALUES[:37]))


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_functions_that_are_left_alone_need_nothing(name: str) -> None:
    whole = LEFT_ALONE[name](VALUES)
    for count in range(len(VALUES)):
        assert torch.equal(LEFT_ALONE[name](VALUES[:count]), whole[:count])
