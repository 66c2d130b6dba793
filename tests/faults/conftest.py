"""A model whose responses can be long."""

from pathlib import Path

import pytest

from tests.support.tiny_models import make_tiny_llama


@pytest.fixture(scope="package")
def model(default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint. Not to be changed."""
    return make_tiny_llama(tmp_path_factory.mktemp("faults") / "tiny", max_position_embeddings=32768)
