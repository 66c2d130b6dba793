"""Secrets of a server: keys that no process list shows, and protocols that stay closed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from lmdeploy.cli.chat_page import ChatPage
from lmdeploy.cli.main import make_parser
from lmdeploy.serve.client import GenerateRequest, TritonClient, TritonRequestError
from lmdeploy.serve.ports import Ports, free_ports
from lmdeploy.serve.ray.settings import RaySettings
from lmdeploy.serve.restrictions import CLOSED, RESTRICTION_KEY, is_loopback, new_key, restriction_options
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.commands import Command
from tests.support.fake_repository import write_fake_repository
from tests.support.processes import command_line

COMMANDS = {
    "api_server": ("api_keys", "admin_keys"),
    "gateway": ("api_keys", "admin_keys"),
    "proxy": ("api_keys", "admin_keys"),
    "gradio m": ("api_keys",),
    "ray": ("api_keys",),
}
OPTIONS = [(command, dest) for command, dests in COMMANDS.items() for dest in dests]


def parse(command: str, *words: str) -> argparse.Namespace:
    return make_parser().parse_everything(["serve", *command.split(), *words])


def keys_file(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("command", "dest"), OPTIONS)
def test_keys_of_command_line_file_and_environment_count_together(
    command: str, dest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = f"--{dest.replace('_', '-')}"
    path = keys_file(tmp_path, "one\n\n  two  \r\n")
    assert getattr(parse(command), dest) == []
    assert getattr(parse(command, f"{flag}-file", str(path)), dest) == ["one", "two"]
    monkeypatch.setenv(f"LMDEPLOY_{dest.upper()}", "three,four\nfive")
    assert getattr(parse(command), dest) == ["three", "four", "five"]
    assert getattr(parse(command, flag, "six", f"{flag}-file", str(path), flag, "seven"), dest) == [
        *("three", "four", "five", "six", "one", "two", "seven")
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--api-keys"], "expected at least one key"),
        (["--api-keys", ""], "expected at least one key"),
        (["--api-keys", " , "], "expected at least one key"),
        (["--api-keys-file", "{empty}"], "holds no key"),
        (["--api-keys-file", "{folder}/none"], "cannot be read: No such file or directory"),
        (["--api-keys-file", "{folder}"], "cannot be read: Is a directory"),
        (["--api-keys-file", "{binary}"], "must be UTF-8 text"),
    ],
)
def test_a_server_that_was_to_have_keys_does_not_start_without(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    paths = {"folder": tmp_path, "empty": keys_file(tmp_path, " \n\n"), "binary": binary}
    with pytest.raises(SystemExit):
        parse("api_server", *(word.format(**paths) for word in words))
    assert reason in capsys.readouterr().err


def test_a_proxy_takes_keys_from_a_file_and_the_environment_and_shows_none(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    path = keys_file(tmp_path, "sk-file\n")
    where = ["--server-port", str(port), "--api-keys-file", str(path), "--state-file", str(tmp_path / "nodes")]
    environment = {"LMDEPLOY_API_KEYS": "sk-user", "LMDEPLOY_ADMIN_KEYS": "sk-boss"}
    with Command("serve", "proxy", *where, env=environment) as command:
        command.wait_for("proxy: ")
        assert "sk-" not in command_line(command.process.pid)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:

            def status(key: str, method: str = "GET", path: str = "/v1/models") -> int:
                return http.request(method, path, headers={"authorization": f"Bearer {key}"}).status_code

            assert [status(key) for key in ("none", "wrong", "sk-file", "sk-user")] == [401, 401, 200, 200]
            remove = "POST", "/nodes/remove?node_url=http://a"
            assert [status(key, *remove) for key in ("sk-file", "sk-boss")] == [401, 404]


def test_the_chat_page_and_replicas_get_keys_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ChatPage("http://localhost:1", "control", "localhost", 1, ["first", "second"], on_ready=lambda: None)
    assert not {"first", "second", "control"} & set(page._command)
    monkeypatch.setattr("os.environ", page._env)
    args = make_parser().parse_everything(page._command[3:])
    assert (args.api_keys, args.api_key) == (["first", "second"], "first")
    path = keys_file(tmp_path, "third")
    replica = RaySettings(model="m", options={"api_keys": "fourth,fifth", "api-keys-file": str(path), "threads": 2})
    assert replica.arguments() == ["m", "--threads", "2"]
    assert replica.api_keys == ("fourth", "fifth", "first", "second", "third")


START = 180.0  # seconds a server gets to be ready on a busy machine
OVER_HTTP = {
    "shared-memory": [
        ("GET", "systemsharedmemory/status"),
        ("POST", "systemsharedmemory/region/mine/register"),
        ("POST", "systemsharedmemory/unregister"),
        ("GET", "cudasharedmemory/status"),
        ("POST", "cudasharedmemory/region/mine/register"),
        ("POST", "cudasharedmemory/unregister"),
    ],
    "model-repository": [
        ("POST", "repository/index"),
        ("POST", "repository/models/turbomind/load"),
        ("POST", "repository/models/turbomind/unload"),
    ],
    "trace": [
        ("GET", "trace/setting"),
        ("POST", "trace/setting"),
        ("GET", "models/turbomind/trace/setting"),
        ("POST", "models/turbomind/trace/setting"),
    ],
    "logging": [("GET", "logging"), ("POST", "logging")],
}
OVER_GRPC: dict[str, list[Callable[[Any], Any]]] = {
    "shared-memory": [
        lambda client: client.get_system_shared_memory_status(),
        lambda client: client.register_system_shared_memory("mine", "/mine", 8),
        lambda client: client.unregister_system_shared_memory(),
        lambda client: client.get_cuda_shared_memory_status(),
        lambda client: client.unregister_cuda_shared_memory(),
    ],
    "model-repository": [
        lambda client: client.get_model_repository_index(),
        lambda client: client.load_model("turbomind"),
        lambda client: client.unload_model("turbomind"),
    ],
    "trace": [
        lambda client: client.get_trace_settings(),
        lambda client: client.update_trace_settings("turbomind", {"trace_level": "TIMESTAMPS"}),
    ],
    "logging": [
        lambda client: client.get_log_settings(),
        lambda client: client.update_log_settings({"log_verbose_level": 4}),
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = write_fake_repository(tmp_path_factory.mktemp("repository"))
    with TritonServer(repository, ports=Ports.free(), backends=()) as server:
        server.wait_ready(START)
        yield server


@pytest.mark.parametrize("group", CLOSED)
def test_a_closed_protocol_is_refused_without_the_key_over_http(server: TritonServer, group: str) -> None:
    with httpx.Client(base_url=f"http://{server.http_address}/v2/", trust_env=False) as client:
        responses = {path: client.request(method, path, content=b"{}") for method, path in OVER_HTTP[group]}
        predicted = client.request(*OVER_HTTP[group][0], headers={"lmdeploy-admin": new_key()})
    assert {path: response.status_code for path, response in responses.items()} == dict.fromkeys(responses, 403)
    assert predicted.status_code == 403


@pytest.mark.parametrize("group", CLOSED)
def test_a_closed_protocol_is_refused_without_the_key_over_grpc(server: TritonServer, group: str) -> None:
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        for call in OVER_GRPC[group]:
            with pytest.raises(InferenceServerException, match="This protocol is restricted"):
                call(client)


async def test_what_clients_need_stays_open(server: TritonServer) -> None:
    async with TritonClient(server.grpc_address) as client:
        assert await client.is_ready()
        assert await client.model_name()
        chunks = [chunk async for chunk in client.generate(GenerateRequest(text_input="you said hello"))]
        with pytest.raises(TritonRequestError) as caught:
            await anext(client.generate(GenerateRequest(text_input="bad")))
    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [("you", None), ("said", None), ("hello", "stop")]
    assert (chunks[-1].input_token_len, chunks[-1].generate_token_len) == (3, 3)
    assert (caught.value.code, caught.value.message) == ("INVALID_ARGUMENT", "text_input must not be bad")
    async with httpx.AsyncClient(base_url=f"http://{server.http_address}/v2/", trust_env=False) as http:
        for path in ("health/ready", "models/turbomind", "models/turbomind/config", "models/turbomind/stats"):
            assert (await http.get(path)).status_code == 200
        requested = await http.post("models/ensemble/generate_stream", json={"text_input": "hello"})
        assert '"text_output":"hello"' in requested.text


def test_every_start_has_a_key_of_its_own() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 64 for key in keys)
    assert all(key in value for key in keys for name, value in restriction_options(key).items() if "restricted" in name)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.7", False),
        ("my-host", False),
    ],
)
def test_an_address_that_others_reach_is_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_keys_on_the_command_line_open_nothing(server: TritonServer) -> None:
    process = Path(f"/proc/{server.pid}")
    shown = {
        word.rpartition(b"=")[2].decode()
        for word in (process / "cmdline").read_bytes().split(b"\0")
        if b"-restricted-" in word
    }
    environment = dict(word.split(b"=", 1) for word in (process / "environ").read_bytes().split(b"\0") if b"=" in word)
    key = environment[RESTRICTION_KEY.encode()].decode()
    assert shown
    assert key not in shown
    with httpx.Client(base_url=f"http://{server.http_address}/v2/", trust_env=False) as client:
        for tried, status in [*((secret, 403) for secret in shown), (key, 200)]:
            requested = client.get("systemsharedmemory/status", headers={"lmdeploy-admin": tried})
            assert requested.status_code == status
