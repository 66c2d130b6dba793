"""A model of a Hugging Face repository is the version that was asked for, in all its parts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.hub.names import HubName
from lmdeploy.serve import api
from tests.support.tiny_models import make_tiny_llama


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose version ``v2`` alone can be had, from one folder."""
    model = make_tiny_llama(tmp_path / "v2")
    (model / "chat_template.jinja").write_text("version 2: {{ messages[0].content }}")

    def find(records: Path, name: HubName, revision: str | None, hub_cache: Path | None) -> Any:
        assert (str(name), revision, hub_cache) == ("owner/name", "v2", tmp_path)
        return SimpleNamespace(path=model)

    monkeypatch.setattr("lmdeploy.hub.pulled.find", find)
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
