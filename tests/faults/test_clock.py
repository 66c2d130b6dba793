"""A clock that is set, in the middle of responses: deadlines and intervals go by one that only runs."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openai_gateway.process.connection import ClientTimeouts
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway

ROOT = Path(__file__).resolve().parent.parent.parent
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(|datetime\.(datetime\.)?(now|utcnow|today)\(")
# A time asked to somebody, who reads it as a date.
DATES = {
    "lmdeploy/cli/models.py",  # when a model was used last, by the server's date
    "lmdeploy/kv_events/stream.py",
    "lmdeploy/templates/dates.py",
    "openai_gateway/database.py",  # what is kept over restarts expires on a day, as its owner was reported
    "openai_gateway/endpoints/chat/route.py",
    "openai_gateway/endpoints/completions/route.py",
    "openai_gateway/endpoints/scoring/route.py",
    "openai_gateway/endpoints/models.py",
    "openai_gateway/endpoints/ollama/route.py",
    "openai_gateway/endpoints/ollama/writer.py",
    "openai_gateway/endpoints/responses/writer.py",
    "openai_gateway/gateway.py",
    "openai_gateway/tracing/spans.py",
}
BODY = {"model": "fake-model", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
DAY = 86_400.0


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with FakeTriton() as made:
        yield made


def test_nothing_but_dates_is_read_from_the_wall_clock() -> None:
    folders = ("lmdeploy", "openai_gateway", "python_backend", "webui")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files if WALL_CLOCK.search(path.read_text("utf-8"))}
    assert found == DATES
    sources = [path for suffix in ("h", "cc", "cu", "cuh") for path in (ROOT / "backend_cpp").rglob(f"*.{suffix}")]
    wall = re.compile(r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\((nullptr|NULL|0)\)")
    assert len(sources) > 150
    # Of files that outlive the process, the order in which they were used.
    assert [path.name for path in sources if wall.search(path.read_text("utf-8"))] == ["block_files.cc"]


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_responses_and_connections_outlive_a_clock_that_is_set(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    fake.script = Script(hold_after=1, resume=True)
    real = time.time
    timeouts = ClientTimeouts(head=5, body=5, write=5)
    with (
        running_gateway(Settings(triton_address=fake.address), timeouts=timeouts) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        assert client.get("/health").status_code == 200
        with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            monkeypatch.setattr(time, "time", lambda: real() + jump)
            threading.Timer(0.1, fake.release.set).start()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        # A call of gRPC's that begins now would compare Python's clock with the machine's, which is not set here.
        monkeypatch.undo()
        assert client.get("/health").status_code == 200  # over a connection that was there before
