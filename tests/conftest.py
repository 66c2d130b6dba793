"""Fixtures for every test."""

from pathlib import Path

import pytest

from tools.default_model import make


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's Hugging Face directory, made on first use."""
    from lmdeploy.paths import default_model_dir

    directory = default_model_dir()
    make(directory)
    return directory
