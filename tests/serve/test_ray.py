"""Settings of the application on Ray; its behaviour is in tests/e2e/test_ray.py."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from yarl import URL

from lmdeploy.cli.main import main, make_parser
from lmdeploy.cli.options import given_options
from lmdeploy.serve.ray import ingress
from lmdeploy.serve.ray.exchange import Head, RoutedRequest, with_routing
from lmdeploy.serve.ray.ingress import ServedPaths
from lmdeploy.serve.ray.replica import url_of
from lmdeploy.serve.ray.settings import RaySettings, flags
from openai_gateway.errors import ApiError
from openai_gateway.middleware.body_limit import SHORT
from tests.support.commands import Command
from tests.support.waiting import eventually

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
    assert RaySettings(options=given).adapters == ("sql", "law")


def test_nothing_is_handed_on_that_was_not_given() -> None:
    assert of_replicas("--replicas", "3", "--max-replicas", "5") == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"options": {"server_port": 1}}, "server-port is no option of a replica"),
        ({"options": {"triton-grpc-port": 1}}, "its own tritonserver"),
        ({"options": {"admin-keys": ["k"]}}, "the same in each replica"),
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
    "path",
    [
        *(
            "//evil/secret",
            "///evil",
            "/\\evil",
            "\\\\evil",
            "@evil/",
            "http://evil/",
            "",
            "*",
            "/secret",
            "/v1/models/../x",
        ),
        *("/v1/models/..", "/v1/models/./x", "/v1/models//evil", "/v1/models\r\nx", "/v1/models/a\n", "/v1/models/\0"),
        *("/v1/models/a\\b", "/v1/models HTTP/1.1", "/v1/models@evil", "/health/../secret", "/v1/files/a/b/c"),
    ],
)
def test_a_path_that_the_gateway_does_not_have_is_not_handed_on(path: str) -> None:
    assert path not in ServedPaths()


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models/a/b.c", "/v1/chat/completions", "/api/chat"])
def test_a_path_that_the_gateway_has_is(path: str) -> None:
    assert path in ServedPaths()


@pytest.mark.parametrize(
    "path",
    ["//evil/secret", "/\\evil", "/@evil:1/x", "/x?y#z", "/%2f%2fevil", "/é\r\n", "/v1/../../x", "/http://evil/"],
)
def test_whatever_the_path_its_url_is_one_of_the_replica_s_own_server(path: str) -> None:
    made = url_of(URL("http://127.0.0.1:1234"), path, "a=%2F%2Fevil&b=c+d&e=&f=#g")
    assert (made.scheme, made.host, made.port, made.user) == ("http", "127.0.0.1", 1234, None)
    assert list(made.query.items()) == [("a", "//evil"), ("b", "c d"), ("e", ""), ("f", "#g")]
    assert made.fragment == ""
    assert "\r" not in str(made)


def routed(body: bytes) -> RoutedRequest:
    return with_routing(RoutedRequest("POST", "/v1/chat/completions", "", (), body), None)


def test_a_body_that_cannot_be_routed_by_is_for_the_replica_to_refuse() -> None:
    for body in (b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}", b"[" * 10_000, b'{"messages": "\\ud800"}', b"\xff"):
        assert routed(body).keys == ()


def test_a_body_of_more_values_than_the_gateway_takes_is_not_parsed() -> None:
    with pytest.raises(ApiError, match="at most"):
        routed(b'{"messages":[' + b"[]," * 2_700_000 + b"[]]}")


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


def test_the_command_line_does_not_import_ray() -> None:
    script = "import sys, lmdeploy.cli.main as m; m.make_parser(); sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


class Replicas:
    """Ray's handle of replicas that respond when they may."""

    def __init__(self) -> None:
        self.requests, self.may_respond = 0, asyncio.Event()

    def options(self, **options: Any) -> "Replicas":
        return self

    def remote(self, request: RoutedRequest) -> "Replicas":
        self.requests += 1
        return self

    def cancel(self) -> None:
        """As Ray's."""

    async def __aiter__(self) -> AsyncIterator[Head | bytes]:
        await self.may_respond.wait()
        yield Head("replica", 200, {})


def posted(length: int) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b" " * length, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
    return Request(scope, receive)


async def test_long_bodies_wait_for_others_and_short_ones_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "MAX_WAIT_SECONDS", 0.05)
    replicas, long = Replicas(), SHORT + 1
    handle = cast(DeploymentHandle, replicas)
    front = ingress.Ingress(handle, (), 2 * SHORT, 2 * SHORT, ())  # of unknown length: room for one
    first = asyncio.create_task(front(posted(long)))
    await eventually(lambda: replicas.requests == 1)
    short = asyncio.create_task(front(posted(SHORT)))
    await eventually(lambda: replicas.requests == 2)
    assert (await front(posted(long))).status_code == 503
    replicas.may_respond.set()
    assert [(await task).status_code for task in (first, short)] == [200, 200]
    assert (await front(posted(long))).status_code == 200
