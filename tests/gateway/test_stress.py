"""Many clients at a time, clients that leave, and clients that hardly read: the gateway as a process of its own."""

import asyncio
import json
import random
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from lmdeploy.serve.ports import free_ports
from tests.gateway.conftest import MODEL
from tests.support.commands import Command
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.metrics import open_requests
from tests.support.processes import memory
from tests.support.waiting import eventually_sync

REPLY = "The capital of France is Paris."
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
# Python's allocator keeps some of what it once had; a leak of a request's buffers would be hundreds of MiB.
ROOM = 48  # MiB


class Served:
    """A gateway process over a fake engine."""

    def __init__(self, fake: FakeTriton, command: Command, port: int) -> None:
        self.fake, self.port, self.url = fake, port, f"http://127.0.0.1:{port}"
        self.pid = command.process.pid

    def raw_request(self) -> bytes:
        body = json.dumps(BODY).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    with FakeTriton(MODEL) as fake:
        (port,) = free_ports(1)
        where = ["--triton-address", fake.address, "--server-name", "127.0.0.1", "--server-port", str(port)]
        with Command("serve", "gateway", *where) as command:
            command.wait_for("/v1")
            yield Served(fake, command, port)


@pytest.fixture
def served(gateway: Served) -> Served:
    gateway.fake.reset()
    return gateway


async def request_many(url: str, count: int) -> list[str]:
    """Return the texts of `count` answers streamed at the same time."""

    async def post(http: httpx.AsyncClient) -> str:
        text = ""
        async with http.stream("POST", "/v1/chat/completions", json=BODY) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line[6:])["choices"]
                    text += choice["delta"].get("content", "")
        return text

    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=url, trust_env=False, limits=limits) as http:
        return await asyncio.gather(*(post(http) for _ in range(count)))


async def test_256_streams_at_a_time_are_all_whole(served: Served) -> None:
    all_there = threading.Barrier(256)

    def together(_: Received) -> Script:
        all_there.wait(180)  # no stream begins before all are open
        return Script()

    served.fake.script = together
    assert await request_many(served.url, 256) == [REPLY] * 256
    assert served.fake.stops.empty()


async def test_hundreds_of_clients_that_leave_cost_nothing_and_disturb_nobody(served: Served) -> None:
    slow = Script(texts=["word "] * 40, hold_after=30)
    served.fake.script = lambda received: slow if "Hello" in received.inputs["messages"] else Script()
    generator = random.Random(5)

    async def leave() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(served.raw_request())
        await asyncio.sleep(generator.uniform(0, 0.05))
        if generator.random() < 0.5:
            await reader.read(generator.randint(1, 2000))
        writer.transport.abort()

    async def leave_many(count: int) -> None:
        at_a_time = asyncio.Semaphore(32)

        async def one() -> None:
            async with at_a_time:
                await leave()

        await asyncio.gather(*(one() for _ in range(count)))

    async def stay() -> list[str]:
        texts = []
        body = {**BODY, "messages": [{"role": "user", "content": "Stay"}], "stream": False}
        async with httpx.AsyncClient(base_url=served.url, trust_env=False) as http:
            for _ in range(25):
                response = await http.post("/v1/chat/completions", json=body)
                texts.append(response.json()["choices"][0]["message"]["content"])
        return texts

    await leave_many(50)
    before = memory(served.pid)
    staying = asyncio.create_task(stay())
    await leave_many(200)
    assert await staying == [REPLY] * 25
    eventually_sync(lambda: open_requests(served.url) == 0)
    begun = {request.id for request in served.fake.requests if "Hello" in request.inputs["messages"]}
    stopped: set[str] = set()  # some of a request that the engine never saw

    def all_are_stopped() -> bool:
        stopped.update(_taken(served.fake))
        return begun <= stopped

    eventually_sync(all_are_stopped)
    assert memory(served.pid) - before < ROOM


def _taken(fake: FakeTriton) -> set[str]:
    return {fake.stops.get() for _ in range(fake.stops.qsize())}


async def test_a_client_that_hardly_reads_holds_no_memory_and_nobody_up(served: Served) -> None:
    long = Script(texts=["word " * 100] * 20_000)  # 10 MB of text, 14 MB of events if none were joined
    served.fake.script = lambda received: long if "Hello" in received.inputs["messages"] else Script()
    connections = []
    for _ in range(6):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(served.raw_request())
        connections.append(connection)
    eventually_sync(lambda: len(served.fake.requests) == 6)
    before = memory(served.pid)
    body = {**BODY, "messages": [{"role": "user", "content": "Quick"}], "stream": False}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as http:
        for _ in range(5):  # now and then a byte, and others being served
            for connection in connections:
                assert connection.recv(1)
            response = await http.post("/v1/chat/completions", json=body)
            assert response.json()["choices"][0]["message"]["content"] == REPLY
            await asyncio.sleep(0.5)
    assert memory(served.pid) - before < ROOM
    for connection in connections:
        connection.close()
    eventually_sync(lambda: open_requests(served.url) == 0)
