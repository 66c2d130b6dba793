import socket
from pathlib import Path

import pytest

from lmdeploy.serve.errors import PortInUseError, TritonStartError
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.tritonserver import TritonServer, load_failures

START = 180.0  # seconds a server gets to be ready on a busy machine


def make_server(repository: Path, ports: Ports | None = None) -> TritonServer:
    return TritonServer(repository, ports=ports or Ports.free(), backends=())


@pytest.mark.parametrize("which", ["http", "grpc", "metrics"])
def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path, which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = make_server(tmp_path, Ports(**{"http": 0, "grpc": 0, "metrics": 0, which: port}))
        with pytest.raises(PortInUseError, match=rf"port {port} on 127\.0\.0\.1 .*--triton-{which}-port"):
            server.start()
        assert server.pid is None


def test_a_server_that_dies_at_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with make_server(tmp_path / "nowhere") as server, pytest.raises(TritonStartError, match="nowhere"):
        server.wait_ready(START)


def test_a_missing_backend_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(TritonStartError, match=r"libtriton_ours\.so is missing; run: make build"):
        TritonServer(tmp_path, ports=Ports.free(), backends=[tmp_path / "ours"]).start()


def test_every_failed_model_is_reported_once() -> None:
    log = [
        "E1121 model_lifecycle.cc:642] \"failed to load 'turbomind' version 1: Invalid argument: session_len is 0\"",
        "| turbomind     | 1       | UNAVAILABLE: Invalid argument: session_len is 0 |",
        "| preprocessing | 1       | UNAVAILABLE: Internal: no tokenizer             |",
        "| ensemble      | 1       | READY                                           |",
    ]
    assert load_failures(log) == {
        "turbomind": "Invalid argument: session_len is 0",
        "preprocessing": "Internal: no tokenizer",
    }
    assert load_failures(["all is well"]) == {}
