"""Fixtures for every test."""

import os
from pathlib import Path

import pytest

from tools.default_model import make

# Every engine, also one inside a server that a test starts, checks itself whenever it goes idle.
os.environ["LMDEPLOY_CHECK_INVARIANTS"] = "1"


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's Hugging Face directory, made on first use."""
    from lmdeploy.paths import default_model_dir

    directory = default_model_dir()
    make(directory)
    return directory
