import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lmdeploy.serve.errors import PortInUseError, TritonStartError
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.supervisor import RestartPolicy, Supervisor
from lmdeploy.serve.tritonserver import TritonServer, load_failures
from tests.support.fake_repository import write_fake_repository
from tests.support.processes import session_members
from tests.support.waiting import eventually_sync

START = 180.0  # seconds a server gets to be ready on a busy machine


def make_server(repository: Path, ports: Ports | None = None) -> TritonServer:
    return TritonServer(repository, ports=ports or Ports.free(), backends=())


def test_a_stopped_server_leaves_no_process_behind(tmp_path: Path) -> None:
    with make_server(write_fake_repository(tmp_path)) as server:
        server.wait_ready(START)
        assert server.pid is not None
        assert len(session_members(server.pid)) > 1
    assert not session_members(server.pid)


def test_a_server_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.tritonserver import TritonServer
repository = Path({str(write_fake_repository(tmp_path))!r})
server = TritonServer(repository, ports=Ports.free(), backends=())
server.start()
server.wait_ready()
print(server.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert len(session_members(pid)) > 1
    parent.kill()
    parent.wait()
    eventually_sync(lambda: not session_members(pid))


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


def test_a_model_that_fails_to_load_is_named_with_its_reason(tmp_path: Path) -> None:
    repository = write_fake_repository(tmp_path, 'raise ValueError("model.safetensors is truncated")')
    with make_server(repository) as server, pytest.raises(TritonStartError) as caught:
        server.wait_ready(START)
    assert "model turbomind could not be loaded: " in str(caught.value)
    assert "model.safetensors is truncated" in str(caught.value)


def test_a_server_that_dies_at_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with make_server(tmp_path / "nowhere") as server, pytest.raises(TritonStartError, match="nowhere"):
        server.wait_ready(START)


def test_a_missing_backend_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(TritonStartError, match=r"libtriton_ours\.so is missing; run: make build"):
        TritonServer(tmp_path, ports=Ports.free(), backends=[tmp_path / "ours"]).start()


def test_a_killed_server_is_started_again(tmp_path: Path) -> None:
    server = make_server(write_fake_repository(tmp_path))
    supervisor = Supervisor(server, RestartPolicy(first_delay=0.1, poll_interval=0.05))
    try:
        server.start()
        server.wait_ready(START)
        supervisor.start()
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        eventually_sync(lambda: server.pid != first and server.is_ready(), timeout=START)
    finally:
        supervisor.stop()
    assert not server.is_running


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
