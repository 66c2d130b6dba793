"""Options of tritonserver for a model, from flags, environment and the model itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from lmdeploy.cli import multi_model, triton
from lmdeploy.cli.main import make_parser
from lmdeploy.cli.multi_model import served_models
from lmdeploy.cli.triton import served_model
from lmdeploy.serve import resolved_model
from lmdeploy.serve.ports import Ports
from lmdeploy.turbomind.convert import convert
from tests.support.tiny_models import make_tiny_llama


class Recorder:
    """Stands in for tritonserver: notes what it was given."""

    pid = None
    is_running = True

    def __init__(self, repository: Path, **settings: Any) -> None:
        self.settings = settings
        self.ports: Ports = settings["ports"]
        text = (repository / "turbomind" / "config.pbtxt").read_text()
        parameters = text_format.Parse(text, ModelConfig()).parameters
        self.parameters = {key: value.string_value for key, value in parameters.items()}

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "TritonServer", Recorder)
    monkeypatch.delenv("LMDEPLOY_ENGINE_CONFIG", raising=False)


def reported(*arguments: str) -> Recorder:
    args = make_parser().parse_args(["serve", "api_server", *arguments])
    with served_model(args.model, args) as served:
        server: Any = served.server
        assert isinstance(server, Recorder)
        return server


@pytest.fixture(scope="module")
def workspace(default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("served")
    model = make_tiny_llama(directory / "tiny-llama")
    return convert(str(model), directory / "workspace", model_name="mine", chat_template="vicuna", dtype="float32")


def test_a_workspace_is_served_with_its_own_settings(workspace: Path) -> None:
    settings = reported(str(workspace)).settings
    assert settings["engine_config"] == {"dtype": "float32", "tp": 1}
    assert (settings["chat_template"], settings["model_name"]) == ("vicuna", "mine")


def test_flags_go_before_the_environment_and_that_before_a_workspace(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_ENGINE_CONFIG", '{"dtype": "bfloat16", "session_len": 128, "max_batch_size": 3}')
    flags = ("--session-len", "64", "--chat-template", "llama2", "--model-name", "yours")
    settings = reported(str(workspace), *flags).settings
    assert settings["engine_config"] == {"dtype": "bfloat16", "tp": 1, "session_len": 64, "max_batch_size": 3}
    assert (settings["chat_template"], settings["model_name"]) == ("llama2", "yours")


@pytest.mark.parametrize(("text", "reason"), [("{", "must hold JSON: .*column 2"), ("[]", "must hold a JSON object")])
def test_a_broken_environment_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setenv("LMDEPLOY_ENGINE_CONFIG", text)
    with pytest.raises(ValueError, match=f"LMDEPLOY_ENGINE_CONFIG {reason}"):
        reported(str(workspace))


def test_an_adapter_that_is_not_there_is_refused_before_anything_is_started(workspace: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ValueError, match=f"^{nowhere}: no such directory$"):
        reported(str(workspace), "--adapters", f"mine={nowhere}")


def test_revision_and_download_dir_say_which_model_is_served(
    default_model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requested: list[tuple[Any, ...]] = []

    def locate(*where: Any) -> Path:
        requested.append(where)
        return default_model_dir

    monkeypatch.setattr(resolved_model, "locate_model", locate)
    config = {"revision": "v2", "download_dir": str(tmp_path)}
    monkeypatch.setenv("LMDEPLOY_ENGINE_CONFIG", json.dumps(config))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # what another program downloaded is taken
    reported("owner/name")
    assert requested == [("owner/name", "v2", str(tmp_path))]


def test_a_server_that_other_machines_reach_is_warned_of(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(str(workspace)).settings["host"] == "127.0.0.1"
    assert capsys.readouterr().err == ""
    assert reported(str(workspace), "--triton-server-name", "0.0.0.0").settings["host"] == "0.0.0.0"
    warning = capsys.readouterr().err
    assert warning.startswith("warning: tritonserver listens on 0.0.0.0, ")
    assert "ports 8000, 8001, 8002" in warning


def test_older_clients_get_a_template_they_know_and_others_the_models_name(workspace: Path) -> None:
    parameters = reported("").parameters
    assert (parameters["model_name"], parameters["served_model_name"]) == ("qwen-7b", "SmolLM2-135M-Instruct")
    converted = reported(str(workspace)).parameters
    assert (converted["model_name"], converted["served_model_name"]) == ("vicuna", "mine")
    named = reported("", "--model-name", "internlm2-chat-7b").parameters
    assert (named["model_name"], named["served_model_name"]) == ("internlm2-chat-7b", "internlm2-chat-7b")
    other = reported("", "--chat-template", "llama2", "--model-name", "mine").parameters
    assert (other["model_name"], other["served_model_name"]) == ("llama2", "mine")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--cache-max-entry-count", "100000000"), "the models do not fit together into the"),
        (("--model-name", "mine"), "--model-name is for one model"),
        (("--triton-server-name", "0.0.0.0"), "listens on this machine only"),
        (("--models-file", "/nowhere.json"), "/nowhere.json cannot be read"),
    ],
)
def test_several_models_that_cannot_be_served_so_are_refused(
    workspace: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    models = [str(workspace), f"other={workspace}"]
    args = make_parser().parse_args(["serve", "api_server", *models, *arguments])
    with pytest.raises(ValueError) as caught, served_models(args):
        pass
    assert sentence in str(caught.value)


def test_several_models_have_folders_and_settings_of_their_own(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class Several(Recorder):
        repository_key = "key"

        def __init__(self, repository: Path, **settings: Any) -> None:
            made.append(settings | {"folders": {path.name for path in repository.iterdir()}})

    monkeypatch.setattr(multi_model, "TritonServer", Several)
    args = make_parser().parse_args(
        ["serve", "api_server", f"a={workspace}", f"b@2={workspace}", "--session-len", "64", "--drain-seconds", "3"]
    )
    with served_models(args) as served:
        entries = made[0]["models"].models()
        assert (served.name, served.models_dir) == ("a, b@2", made[0]["models"].folder)
    assert [(entry.name, entry.suffix, entry.chat_template) for entry in entries] == [
        ("a", ".a", "vicuna"),
        ("b@2", ".b_2", "vicuna"),
    ]
    assert {"turbomind.a", "ensemble.b_2"} < made[0]["folders"]
    assert "engine_config" not in made[0]
