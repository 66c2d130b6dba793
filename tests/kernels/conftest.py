"""Every kernel test runs once with each instruction set this CPU has."""

from collections.abc import Iterator

import pytest

from lmdeploy import _turbomind


@pytest.fixture(params=_turbomind.supported_isas(), autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _turbomind.current_isa()
    _turbomind.select_isa(request.param)
    yield request.param
    _turbomind.select_isa(before)
