"""A server we start keeps the protocols that administer it closed, over HTTP and gRPC, and serves all the same."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from lmdeploy.serve.client import GenerateRequest, TritonClient
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.restrictions import CLOSED, RESTRICTION_KEY, is_loopback, new_key, restriction_options
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.fake_repository import write_fake_repository

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
    assert [chunk.text for chunk in chunks] == ["you", "said", "hello"]
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
