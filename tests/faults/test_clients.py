"""Clients that stop in the middle of a response, and very many of them."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.callers import STORY, complete, expect_no_leaks, is_answered
from tests.support.commands import ApiServer, api_server
from tests.support.metrics import measurement
from tests.support.processes import open_files
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.e2e

CONNECTIONS = 1000
USUAL_LIMIT = 1024  # of open files, that a shell gives
CLIENT = """
import httpx, json, sys
with httpx.stream("POST", sys.argv[1], json=json.loads(sys.argv[2]), timeout=600, trust_env=False) as answer:
    for line in answer.iter_lines():
        print("line", flush=True)
"""


def with_usual_limit() -> None:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(USUAL_LIMIT, hard_limit), hard_limit))


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ApiServer]:
    flags = ("--cache-max-entry-count", "8192", "--write-timeout", "1")
    with api_server(str(model), *flags, before=with_usual_limit) as server:
        server.wait_ready()
        assert is_answered(server)
        yield server
        assert server.end(signal.SIGTERM) == 143, server.output


def test_a_stopped_client_is_let_go_and_its_response_cancelled(server: ApiServer) -> None:
    talkative = STORY | {"logprobs": True, "top_logprobs": 20}  # 2 KB a token: soon more than the sockets hold
    words = [f"{server.url}/v1/chat/completions", json.dumps(talkative)]
    with subprocess.Popen([sys.executable, "-c", CLIENT, *words], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout.readline() == "line\n"
        os.kill(client.pid, signal.SIGSTOP)
        eventually_sync(lambda: measurement(server.metrics_url, "turbomind_requests_cancelled_total") == 1)
        expect_no_leaks(server)
        assert is_answered(server)
        os.kill(client.pid, signal.SIGKILL)


def test_a_thousand_connections_are_served_and_their_descriptors_come_back(server: ApiServer) -> None:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard_limit > 2 * CONNECTIONS, "the limit of open files of this machine is too low for the test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    body = json.dumps(STORY | {"max_tokens": 2, "stream": False}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    request = f"{head}content-type: application/json\r\n\r\n".encode() + body
    before = open_files(server.process.pid)

    async def all_of_them() -> list[bytes]:
        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", server.port)

        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            writer.write(request)
            return await reader.readline()

        peers = [await connect() for _ in range(CONNECTIONS)]
        assert (await asyncio.to_thread(complete, server)).status_code == 200  # one more, while they are idle
        assert open_files(server.process.pid) >= before + CONNECTIONS
        lines = await asyncio.gather(*(respond(*peer) for peer in peers))
        for _, writer in peers:
            writer.close()
        return list(lines)

    assert set(asyncio.run(asyncio.wait_for(all_of_them(), 200))) == {b"HTTP/1.1 200 OK\r\n"}
    eventually_sync(lambda: open_files(server.process.pid) <= before + 2)
    expect_no_leaks(server)
