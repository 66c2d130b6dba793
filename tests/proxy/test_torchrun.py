"""Several API servers started side by side, as torchrun does it, register at one proxy and share its requests."""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from lmdeploy.serve.ports import free_ports
from openai_gateway.proxy.settings import ProxySettings
from tests.support.commands import Command
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_proxy
from tests.support.waiting import eventually_sync

RANKS = 3


@pytest.fixture
def fakes() -> Iterator[list[FakeTriton]]:
    made = [FakeTriton("m") for _ in range(RANKS)]
    yield made
    for fake in made:
        fake.stop()


def test_servers_of_every_rank_register_share_the_work_and_leave(fakes: list[FakeTriton]) -> None:
    ports = free_ports(RANKS)
    expected = {f"http://127.0.0.1:{port}" for port in ports}
    with ExitStack() as stack:
        url = stack.enter_context(running_proxy(ProxySettings(check_seconds=0.5)))

        def registered() -> set[str]:
            return set(httpx.get(f"{url}/nodes/status", trust_env=False).json())

        servers = []
        for rank, (fake, port) in enumerate(zip(fakes, ports, strict=True)):
            where = ["--triton-address", fake.address, "--server-name", "127.0.0.1", "--server-port", str(port)]
            env = {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            servers.append(stack.enter_context(Command("serve", "gateway", *where, "--proxy-url", url, env=env)))
        eventually_sync(lambda: registered() == expected)
        cards = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]
        assert [card["id"] for card in cards] == ["m"]  # one model, however many serve it
        body = {"model": "m", "prompt": "a"}
        with httpx.Client(base_url=url, trust_env=False) as http:
            for _ in range(10 * RANKS):
                assert http.post("/v1/completions", json=body).status_code == 200
        assert sum(len(fake.requests) for fake in fakes) == 10 * RANKS
        assert all(fake.requests for fake in fakes)
        assert servers[0].end() == 143
        assert registered() == expected - {f"http://127.0.0.1:{ports[0]}"}
