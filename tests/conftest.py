"""Fixtures for every test."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.alone import place_on_the_machine
from tests.support.samples import OPTION, leave_out
from tools.default_model import make

# Every engine, also one inside a server that a test starts, checks itself whenever it goes idle.
os.environ["LMDEPLOY_CHECK_INVARIANTS"] = "1"


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before a test's time is counted
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with place_on_the_machine(item):
        return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    more = "run all cases of tests marked `alike`, not a sample, and those marked `thorough`"
    parser.addoption(OPTION, action="store_true", help=more)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items)


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's Hugging Face directory, made on first use."""
    from lmdeploy.paths import default_model_dir

    directory = default_model_dir()
    make(directory)
    return directory
