"""Operator tests run once on each device: the CPU with each of its instruction sets, emulated CUDA, a GPU.

A test takes ``device`` to run on all of them, ``cpu`` or ``cuda`` where it is about one kind.
"""

from collections.abc import Iterator

import pytest

from tests.kernels.device import NOT_BUILT, Device, built_modules, cuda_devices, host_module, opened


def cpu_names() -> list[str]:
    """Return the CPU with each instruction set that it has."""
    return [f"cpu-{isa}" for isa in host_module().supported_isas()] if built_modules() else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    choices = {"device": lambda: [*cpu_names(), *cuda_devices()], "cpu": cpu_names, "cuda": cuda_devices}
    for fixture, names in choices.items():
        if fixture in metafunc.fixturenames:
            params = [pytest.param(name, marks=marks_of(name, fixture)) for name in names() or ["none"]]
            metafunc.parametrize(fixture, params, indirect=True)


def marks_of(name: str, fixture: str) -> list[pytest.MarkDecorator]:
    """Return `alike` for the emulation, which is slow, and for what the best instruction set shows in every case."""
    is_lesser = name in cpu_names()[1:]
    return [pytest.mark.alike] if name == "emulated" or is_lesser else []


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "none":
        pytest.skip(NOT_BUILT)
    with opened(request.param) as device:
        yield device


cpu = device
cuda = device
