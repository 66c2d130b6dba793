"""A model of a Hugging Face repository is the version that was asked for, in all its parts."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.serve import api
from tests.support.tiny_models import make_tiny_llama


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose version ``v2`` alone can be had, from one folder."""
    model = make_tiny_llama(tmp_path / "v2")
    (model / "chat_template.jinja").write_text("version 2: {{ messages[0].content }}")

    def download(name: str, *, revision: str | None, cache_dir: str | None, allow_patterns: list[str]) -> str:
        assert (name, revision, cache_dir) == ("owner/name", "v2", str(tmp_path))
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return model


def test_weights_tokenizer_and_template_of_a_pipeline_are_of_one_revision(repository: Path, tmp_path: Path) -> None:
    config = TurbomindEngineConfig(
        revision="v2", download_dir=str(tmp_path), dtype="float32", session_len=64, cache_max_entry_count=8
    )
    with pipeline("owner/name", backend_config=config) as pipe:
        assert pipe.chat_template.render([{"role": "user", "content": "Hi"}]) == "version 2: Hi"


def test_a_served_model_is_of_the_revision_asked_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    class Stop(Exception):
        pass

    def start(command: list[str], **_: Any) -> None:
        commands.append(command)
        raise Stop

    monkeypatch.setattr(api, "ChildProcess", start)
    with pytest.raises(Stop):
        api.serve("owner/name", backend_config=TurbomindEngineConfig(revision="v2", download_dir=str(tmp_path)))
    [command] = commands
    assert str(repository) in command
    assert "owner/name" not in command
