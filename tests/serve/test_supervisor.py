"""Processes of a server: started again, quiet while idle, and with the imports, memory and ports that they need."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn

from lmdeploy.cli import chat_page
from lmdeploy.cli.chat_page import ChatPage
from lmdeploy.serve import quiet_server
from lmdeploy.serve.ports import free_ports
from lmdeploy.serve.quiet_server import QuietServer
from lmdeploy.serve.supervisor import RestartPolicy, Supervisor
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.waiting import eventually_sync


class Scripted:
    """Stands in for a tritonserver; `starts` counts."""

    def __init__(self, *, runs: bool, loses_a_model: bool = False, prepares: bool = True) -> None:
        self.starts = 0
        self.stops: list[float] = []
        self.is_running = runs
        self._loses = loses_a_model
        self._prepares = prepares
        self.probes = 0

    def is_ready(self) -> bool:
        return self.is_running

    def has_lost_a_model(self) -> bool:
        return self._loses

    def prepares_prompts(self, timeout: float) -> bool:
        self.probes += 1
        return self._prepares

    def failure(self, what: str) -> str:
        return f"{what}: as scripted"

    def start(self) -> None:
        self.starts += 1

    def stop(self, grace: float = 15) -> None:
        self.stops.append(grace)


class Waits(threading.Event):
    """Notes for how long somebody wanted to wait, and does not."""

    def __init__(self, max_waits: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._max_waits = max_waits

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        if len(self.seconds) >= self._max_waits:
            self.set()
        return self.is_set()


def supervise(server: Any, policy: RestartPolicy, monkeypatch: pytest.MonkeyPatch, waits: int) -> list[float]:
    waited = Waits(waits)
    supervisor = Supervisor(server, policy)
    monkeypatch.setattr(supervisor, "_stopping", waited)
    supervisor.start()
    eventually_sync(waited.is_set)
    supervisor.stop()
    return waited.seconds


def test_the_first_failure_is_mended_at_once_and_later_ones_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Scripted(runs=False)
    waits = supervise(server, RestartPolicy(first_delay=1.0, max_delay=5.0), monkeypatch, 6)
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert server.starts == 5


def test_a_server_that_ran_for_long_is_started_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = supervise(Scripted(runs=False), RestartPolicy(stable_after=-1.0), monkeypatch, 4)
    assert waits == [0.0] * 4


def test_a_server_that_lost_a_model_is_killed_although_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Scripted(runs=True, loses_a_model=True)
    supervise(server, RestartPolicy(poll_interval=0.0, check_interval=0.0), monkeypatch, 3)
    assert server.starts >= 1
    assert server.stops[0] == 0
    assert "a Python model of tritonserver has ended" in caplog.text


def test_a_server_that_is_well_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Scripted(runs=True)
    supervise(server, RestartPolicy(poll_interval=0.0, check_interval=0.0), monkeypatch, 50)
    assert server.starts == 0
    assert server.stops == [15]


@pytest.mark.parametrize("prepares", [False, True])
def test_a_ready_server_that_tokenizes_nothing_is_started_again(
    prepares: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = Scripted(runs=True, prepares=prepares)
    supervisor = Supervisor(cast("Any", server), RestartPolicy(poll_interval=0, check_interval=0.001, probe_interval=0))
    supervisor.start()
    eventually_sync(lambda: server.starts > 0 if not prepares else server.probes > 100)
    supervisor.stop()
    assert ("has not tokenized a short text" in caplog.text) != prepares
    assert (server.starts > 0) != prepares


async def app(scope: dict, receive: object, send: object) -> None:  # type: ignore[type-arg]
    await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body"})  # type: ignore[operator]


def test_a_server_that_sleeps_for_an_hour_answers_and_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_server, "_TICK", 3600.0)
    server = QuietServer(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))  # type: ignore[arg-type]
    assert not server.should_exit
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually_sync(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    response = httpx.get(f"http://127.0.0.1:{port}", trust_env=False)
    assert response.status_code == 204
    assert response.headers["date"].endswith("GMT")
    server.should_exit = True
    thread.join(180)
    assert not thread.is_alive()
    server.should_exit = True  # once more harms nothing


# Pieces of 300 KB, and between each two a small one that lives: those of a body's parsing, and what is kept of it.
# malloc itself counts what it holds: how much of it is resident depends on the kernel, which may take pages back.
_LIVED = """
import ctypes
from lmdeploy.serve.heap import trim_heap

class Mallinfo2(ctypes.Structure):  # mallinfo(3), glibc's
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo2.restype = Mallinfo2

def held():
    info = libc.mallinfo2()
    return (info.arena + info.hblkhd) / 2**20

trim_heap()
libc.free(libc.malloc(4 << 20))  # as after a large body
before = held()
large, small = [], []
for _ in range(128):
    large.append(libc.malloc(300_000))
    small.append(libc.malloc(1000))
used = held()
for piece in large:
    libc.free(piece)
print(used - before, held() - before)  # MiB
"""


def test_memory_of_large_pieces_goes_back_though_small_ones_live_between_them() -> None:
    settings = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")  # of the caller's C library
    environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    output = subprocess.run(
        [sys.executable, "-c", _LIVED], check=True, capture_output=True, text=True, env=environment
    ).stdout
    used, kept = map(float, output.split())
    assert used > 30
    assert kept < 2


HEAVY = ("torch", "transformers", "huggingface_hub", "sentencepiece", "gradio", "pandas", "scipy")

IN_TRITON = """
import json, sys
from tests.support.fake_pb_utils import Request, loaded_model
path = sys.argv[1]
with loaded_model("postprocessing", model_path=path), loaded_model("vision", model_path=path):
    pass
with loaded_model("preprocessing", model_path=path) as model:
    [response] = model.execute([Request(messages=json.dumps([{"role": "user", "content": "Hi"}]))])
    assert response.error is None and response.array("INPUT_ID").size > 3, response
"""

BEFORE_TRITON = """
import sys
from lmdeploy.cli import api_server
from lmdeploy.cli.main import make_parser
from lmdeploy.turbomind.engine_dir import resolve
make_parser().parse_args(["serve", "api_server", sys.argv[1]])
resolve(sys.argv[1])
"""


def imported(code: str, *arguments: str) -> set[str]:
    """Return which of the heavy libraries a program has imported when it ends."""
    shown = f"{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", shown, *arguments], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("code", [IN_TRITON, BEFORE_TRITON], ids=["in Triton", "around Triton"])
def test_a_served_tokenizer_json_needs_no_transformers(code: str, default_model_dir: Path) -> None:
    resolve("")  # as the first start leaves it
    assert imported(code, str(default_model_dir)) == set()


def test_the_check_sees_an_import() -> None:
    assert imported("import sys, transformers") >= {"transformers"}


def test_free_ports_differ_are_free_and_are_never_given_to_an_outgoing_connection() -> None:
    ports = free_ports(32)
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 32
    assert max(ports) < lowest_outgoing
    for port in ports:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", port))


def test_a_page_that_cannot_start_ends_the_command_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    signals: list[tuple[int, int]] = []

    def record(pid: int, signum: int) -> None:
        signals.append((pid, signum))
        ended.set()

    monkeypatch.setattr(chat_page.os, "kill", record)
    page = ChatPage(
        "localhost:1", "", "no address", free_ports(1)[0], ["key"], on_ready=lambda: pytest.fail("it is not ready")
    )
    page.start()
    assert ended.wait(180)
    assert signals == [(os.getpid(), signal.SIGTERM)]
    assert "the chat page did not start" in page.failure
    assert "no address" in page.failure
    page.stop()


def test_a_page_that_is_not_wanted_is_not_started() -> None:
    page = ChatPage("localhost:1", "", "localhost", free_ports(1)[0], (), on_ready=lambda: None)
    page.stop()
    assert page.failure == ""


_LOADED = """
import gc
from lmdeploy.serve.heap import pause_collection
from openai_gateway.process.server import Listening, Server

pause_collection()
loaded = [[] for _ in range(10_000)]
assert gc.get_count()[0] > 10_000
server = Server(None, Listening("127.0.0.1", 0), 1.0, on_ready=lambda: setattr(server, "should_exit", True))
server.run()
print(gc.isenabled(), any(item is loaded[0] for item in gc.get_objects()))
"""


def test_a_server_collects_garbage_but_not_among_what_was_loaded() -> None:
    output = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True).stdout
    assert output.split() == ["True", "False"]
