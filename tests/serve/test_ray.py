"""Settings of the application on Ray; its behaviour is in tests/e2e/test_ray.py."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from lmdeploy.cli.main import main, make_parser
from lmdeploy.cli.options import given_options
from lmdeploy.serve.ray.settings import RaySettings, flags
from tests.support.commands import Command

ROOT = Path(__file__).resolve().parent.parent.parent


def of_replicas(*words: str) -> dict[str, Any]:
    args = make_parser().parse_everything(["serve", "ray", "m", *words])
    return given_options(args.of_replicas, args)


def test_options_of_replicas_are_those_of_an_api_server() -> None:
    words = ["--dtype", "float32", "--adapters", "sql=/a", "law=/b", "--log-format", "json", "--split-special-tokens"]
    words += ["--cache-dir", "/shared/kv", "--cache-dir-bytes", "2e9"]
    given = of_replicas(*words, "--replicas", "2", "--server-port", "1")
    parser = make_parser()
    read = parser.parse_everything(["serve", "api_server", "m", *flags(RaySettings(options=given).options)])
    meant = parser.parse_everything(["serve", "api_server", "m", *words])
    assert vars(read) == vars(meant)


def test_nothing_is_handed_on_that_was_not_given() -> None:
    assert of_replicas("--replicas", "3", "--max-replicas", "5") == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"options": {"server_port": 1}}, "server-port is no option of a replica"),
        ({"options": {"triton-grpc-port": 1}}, "its own tritonserver"),
        ({"options": {"admin-keys": ["k"]}}, "the same in each replica"),
        ({"options": {"files-dir": "/f"}}, "forwards no files and batches"),
        ({"max_queued": 1}, "Extra inputs are not permitted"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas must be at least replicas (3), got 2"),
        ({"replicas": 0}, "greater than or equal to 1"),
        ({"replcas": 1}, "Extra inputs are not permitted"),
    ],
)
def test_bad_settings_are_refused_with_what_is_wrong(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as rejected:
        RaySettings(**wrong)
    assert message in str(rejected.value)


@pytest.mark.parametrize(
    ("requests", "waiting", "expected"),
    [
        (0, 0, 0),  # Ray's lower bound holds
        (10, 0, 1),
        (11, 0, 2),
        (10, 1, 2),  # something waits: none less
        (10, 8, 2),
        (10, 9, 3),  # more than four each: one more
        (100, 0, 10),
        (100, 50, 10),
    ],
)
def test_replicas_are_wanted_for_open_requests_and_for_queues(requests: float, waiting: float, expected: int) -> None:
    pytest.importorskip("ray", reason="needs the extra [ray]")
    from lmdeploy.serve.ray.autoscaling import desired_replicas

    assert desired_replicas(2, requests, waiting, target_requests=10, waiting_per_replica=4) == expected


def test_the_example_of_a_configuration_file_is_what_ray_and_the_application_take() -> None:
    pytest.importorskip("ray", reason="needs the extra [ray]")
    from ray.serve.schema import ServeDeploySchema

    config = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text(encoding="utf-8"))
    (application,) = ServeDeploySchema.model_validate(config).applications
    assert application.import_path == "lmdeploy.serve.ray:app"
    settings = RaySettings(**application.args)
    make_parser().parse_everything(["serve", "api_server", *settings.arguments()])


def test_without_ray_one_sentence_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('Ray without Serve')\n")
    with Command("serve", "ray", "m", env={"PYTHONPATH": str(tmp_path)}) as command:
        assert command.process.wait(180) == 1
    assert command.output == f"lmdeploy serve ray: Ray Serve is not installed; run: make -C {ROOT} dev\n"
    monkeypatch.setattr("lmdeploy.extras._is_there", lambda module: module != "ray")
    assert main(["serve", "ray", "m"]) == 1
    message = capsys.readouterr().err
    assert message.endswith(f"needs packages that are not installed (ray); run: make -C {ROOT} dev\n")


@pytest.fixture
def message(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return the errors of ``lmdeploy serve ray`` when it ends before Ray has started."""
    ray = pytest.importorskip("ray", reason="needs the extra [ray]")

    def run(*arguments: str) -> str:
        assert main(["serve", "ray", *arguments]) == 1
        assert not ray.is_initialized()
        return capsys.readouterr().err

    return run


def test_a_port_that_is_taken_and_a_bad_option_are_reported_before_ray_starts(
    message: Callable[..., str], default_model_dir: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ["--server-name", "127.0.0.1", "--server-port", str(taken.getsockname()[1])]
        reported = message(str(default_model_dir), *where)
    assert reported.startswith("lmdeploy serve ray: port ")
    assert "(--server-port)" in reported
    assert "proxy-url is no option of a replica: Ray Serve is the proxy" in message("m", "--proxy-url", "http://x")


def test_a_model_that_cannot_be_served_is_reported_before_ray_starts(
    message: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Nobody"]}')
    for model, problem in (
        (tmp_path / "nowhere", "no such directory"),
        (tmp_path, "architecture Nobody is not supported"),
    ):
        reported = message(str(model))
        assert reported.startswith("lmdeploy serve ray: ")
        assert problem in reported
