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
            params = [pytest.param(name, marks=sample_of(name)) for name in names() or ["none"]]
            metafunc.parametrize(fixture, params, indirect=True)


def sample_of(name: str) -> pytest.MarkDecorator:
    """Return the mark of a device's cases: of lesser instruction sets, which share all code but vectors, a few."""
    return pytest.mark.alike(max_cases=6) if name in cpu_names()[1:] else pytest.mark.alike


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.param == "none":
        pytest.skip(NOT_BUILT)
    with opened(request.param) as device:
        yield device


cpu = device
cuda = device
