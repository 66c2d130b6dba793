"""Kernel tests run once with each instruction set this CPU has; those of CUDA kernels once on each device."""

from collections.abc import Iterator

import pytest

from lmdeploy import _turbomind
from tests.kernels.cuda_device import CudaModule, built_devices, load_device


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cuda" in metafunc.fixturenames:
        metafunc.parametrize("cuda", built_devices() or ["none"], indirect=True)
    else:
        metafunc.parametrize("isa", _turbomind.supported_isas(), indirect=True)


@pytest.fixture(autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before: str = _turbomind.current_isa()
    name: str = getattr(request, "param", before)
    _turbomind.select_isa(name)
    yield name
    _turbomind.select_isa(before)


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> CudaModule:
    if request.param == "none":
        pytest.skip(
            "the CUDA kernels are not built for the tests, neither emulated nor for a GPU: run `make build-tests`"
        )
    return load_device(request.param)
