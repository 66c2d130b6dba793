"""SIGKILL of each process of a server: open responses end with a reason, the service comes back, nothing is left."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import httpx
import pytest

from lmdeploy.serve.shared_memory import FOLDER, Regions
from tests.faults.callers import Reader, complete, expect_no_leaks, is_answered
from tests.support.commands import ApiServer, api_server
from tests.support.processes import children, command_line, open_files, session_members
from tests.support.servers import START
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.e2e

FLAGS = ("--workers", "2", "--cache-max-entry-count", "4096")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ApiServer]:
    with api_server(str(model), *FLAGS) as server:
        server.wait_ready()
        yield server


def regions_of(server: ApiServer) -> set[str]:
    """Return the shared memory of the server's Python models, by the name that tritonserver was given."""
    words = Path(f"/proc/{server.triton_pid()}/cmdline").read_text().split("\0")
    found = [word.partition("shm-region-prefix-name=")[2] for word in words if "shm-region-prefix-name=" in word]
    return {path.name for prefix in found for path in FOLDER.glob(f"{prefix}*")}


def stub_of(server: ApiServer, name: str) -> int:
    pids = children(server.triton_pid())
    (pid,) = [pid for pid in pids if f"/{name}/" in command_line(pid)]
    return pid


def test_a_killed_tritonserver_ends_responses_with_a_reason_and_is_replaced(server: ApiServer) -> None:
    readers = [Reader(server) for _ in range(4)]
    first, regions = server.triton_pid(), regions_of(server)
    assert regions
    os.kill(first, signal.SIGKILL)
    assert [reader.end() for reader in readers] == ["service_unavailable"] * 4
    rejected = complete(server)  # no request hangs
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (503, "service_unavailable")
    eventually_sync(lambda: is_answered(server), timeout=START)
    assert not session_members(first)
    assert not [name for name in regions if (FOLDER / name).exists()]
    assert len(regions_of(server)) == len(regions)
    expect_no_leaks(server)


def test_a_stopped_tritonserver_is_not_healthy_until_it_goes_on(server: ApiServer) -> None:
    def health() -> int:
        return httpx.get(f"{server.url}/health", trust_env=False).status_code

    eventually_sync(lambda: health() == 200, timeout=START)  # the tests before may have had it restarted
    triton = server.triton_pid()
    os.kill(triton, signal.SIGSTOP)
    try:
        eventually_sync(lambda: health() == 503, timeout=START)
        assert server.triton_pid() == triton
    finally:
        os.kill(triton, signal.SIGCONT)
    eventually_sync(lambda: is_answered(server), timeout=START)
    eventually_sync(lambda: health() == 200, timeout=START)


def test_a_killed_python_model_ends_responses_with_a_reason_and_is_replaced(server: ApiServer) -> None:
    reader = Reader(server)
    first, regions = server.triton_pid(), regions_of(server)
    os.kill(stub_of(server, "preprocessing"), signal.SIGKILL)
    # Triton says that it is ready, and would answer every further request with an error.
    eventually_sync(lambda: is_answered(server) and not session_members(first), timeout=START)
    assert reader.end() == "service_unavailable"
    assert not [name for name in regions if (FOLDER / name).exists()]
    expect_no_leaks(server)


def test_a_killed_gateway_worker_costs_its_own_responses_only(server: ApiServer) -> None:
    readers: list[Reader] = []  # the kernel spreads them over both workers

    def are_open() -> bool:
        reader = Reader(server)
        if reader.status == 200:
            readers.append(reader)
        else:  # one of the workers has not connected to the tritonserver yet that the test before had replaced
            assert reader.end() == "service_unavailable"
        return len(readers) == 6

    eventually_sync(are_open, timeout=START)
    workers = server.pids("openai_gateway.process.worker")
    assert len(workers) == 2
    victim = max(workers, key=open_files)
    os.kill(victim, signal.SIGKILL)
    eventually_sync(lambda: any(not reader.is_alive() for reader in readers), timeout=START)
    eventually_sync(lambda: is_answered(server), timeout=START)
    eventually_sync(lambda: len(server.pids("openai_gateway.process.worker")) == 2, timeout=START)
    broken = [reader for reader in readers if not reader.is_alive()]
    assert {reader.end() for reader in broken} == {"RemoteProtocolError"}
    assert victim not in server.pids("openai_gateway.process.worker")
    # The engine finishes nobody's response: what the worker had asked for is cancelled with its connection.
    for survivor in server.pids("openai_gateway.process.worker"):
        os.kill(survivor, signal.SIGKILL)
    for reader in readers:
        assert reader.end() == "RemoteProtocolError"
    eventually_sync(lambda: is_answered(server), timeout=START)
    expect_no_leaks(server)


def test_what_a_killed_launcher_leaves_is_removed_by_the_next(server: ApiServer, model: Path) -> None:
    reader = Reader(server)
    triton, regions = server.triton_pid(), regions_of(server)
    assert regions
    folders = set(Path(gettempdir()).glob("lmdeploy-models-*"))
    server.end(signal.SIGKILL)  # no test after this one may use it
    assert reader.end() in {"RemoteProtocolError", "service_unavailable"}  # a worker ends first, or tritonserver
    eventually_sync(lambda: not session_members(triton), timeout=START)
    with api_server(str(model), *FLAGS[2:]) as following:
        following.wait_ready()
        assert complete(following).status_code == 200
        assert not [name for name in regions if (FOLDER / name).exists()]
        left = folders & set(Path(gettempdir()).glob("lmdeploy-models-*"))
        assert len(left) < len(folders)
        regions = regions_of(following)
        assert regions
        assert following.end(signal.SIGTERM) == 143, following.output
        assert not [name for name in regions if (FOLDER / name).exists()]
    Regions().remove()
