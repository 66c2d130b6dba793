"""Fixtures of the unit tests: their own cache, and tiny checkpoints to break."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.tiny_models import make_tiny_llama


@pytest.fixture(scope="session", autouse=True)
def _own_cache(default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep engine directories of tests out of the user's cache; the default model is a link to the real one."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "models").mkdir()
    (cache / "models" / default_model_dir.name).symlink_to(default_model_dir)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDEPLOY_CACHE", str(cache))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama checkpoint in one file. Not to be changed: see ``copy_of``."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="session")
def sharded_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as ``tiny_llama`` in several files. Not to be changed: see ``copy_of``."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "sharded-llama", shard="20KB")


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """Make a copy of a checkpoint that the test may damage."""

    def copy(checkpoint: Path) -> Path:
        return Path(shutil.copytree(checkpoint, tmp_path / checkpoint.name))

    return copy
