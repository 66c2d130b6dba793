"""Libraries' kernels as the emulation plays them: right ones, wrong ones, none."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kernels.device import Device, built_modules, load_module, opened

NONE, RIGHT, WRONG = 0, 1, 2

needs_emulation = pytest.mark.skipif(
    "emulated" not in built_modules(), reason="the emulation of CUDA is not built: run `make build-tests`"
)


@contextmanager
def library(operator: str, kernel: int) -> Iterator[Device]:
    """Yield the emulated device with such a library for ``experts``, ``latents``, ``prompts`` or ``scales``."""
    module = load_module("emulated")
    module.set_library(operator, kernel)
    try:
        with opened("emulated") as device:
            yield device
    finally:
        module.set_library(operator, NONE)
