"""Requests made to reach another server, another path, or the list of nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from openai_gateway.proxy.settings import ProxySettings
from tests.abuse.attacks import Attack, proxy_requests, responses, trap
from tests.support.gateways import running_proxy
from tests.support.http_host import Host, Reply, running_host

KEY = "right"
PATH = "/v1/chat/completions"
ATTACKS = proxy_requests("127.0.0.1:9")


class Proxy:
    """A proxy with one node, and a server that nobody is to reach."""

    def __init__(self, url: str, node: Host, other: Host) -> None:
        self.port = int(url.rpartition(":")[2])
        self.http = httpx.Client(base_url=url, trust_env=False, headers={"authorization": f"Bearer {KEY}"})
        self.node, self.other = node, other

    @property
    def attacks(self) -> dict[str, Attack]:
        return {attack.name: attack for attack in proxy_requests(self.other.address)}

    def nodes(self) -> set[str]:
        return set(self.http.get("/nodes/status").json())


def made(stack: ExitStack, api_keys: tuple[str, ...], admin_keys: tuple[str, ...]) -> Proxy:
    other = stack.enter_context(trap())
    node = stack.enter_context(running_host(lambda request: Reply(json.dumps({"path": request.path}).encode())))
    url = stack.enter_context(running_proxy(ProxySettings(api_keys=api_keys, admin_keys=admin_keys)))
    proxy = Proxy(url, node, other)
    stack.callback(proxy.http.close)
    added = proxy.http.post("/nodes/add", json={"url": node.url, "status": {"models": ["m"]}})
    assert added.json() == "Added successfully"
    return proxy


@pytest.fixture(scope="module")
def locked() -> Iterator[Proxy]:
    """A proxy with keys."""
    with ExitStack() as stack:
        yield made(stack, (KEY,), (KEY,))


@pytest.fixture(scope="module")
def unlocked() -> Iterator[Proxy]:
    """A proxy without any."""
    with ExitStack() as stack:
        yield made(stack, (), ())


@pytest.mark.parametrize("name", [attack.name for attack in ATTACKS])
def test_nothing_is_served_without_a_key(locked: Proxy, name: str) -> None:
    before = list(locked.node.visits)
    statuses = responses(locked.port, locked.attacks[name])
    assert all(400 <= status < 500 for status in statuses), statuses
    assert statuses or "length" in name or "chunks" in name  # those may be hung up on
    assert locked.node.visits == before
    assert not locked.other.visits
    assert locked.nodes() == {f"http://{locked.node.address}"}


@pytest.mark.parametrize("name", [attack.name for attack in ATTACKS if not attack.name.startswith("a node")])
def test_with_a_key_nothing_but_the_api_of_its_nodes_is_reached(locked: Proxy, name: str) -> None:
    statuses = responses(locked.port, locked.attacks[name].with_key(KEY), timeout=2)
    assert all(status < 500 for status in statuses), statuses
    assert set(locked.node.visits) <= {f"POST {PATH}", "GET /health"}
    assert not locked.other.visits


@pytest.mark.parametrize("name", [attack.name for attack in ATTACKS if attack.name.startswith("a node")])
def test_where_there_are_no_keys_only_a_program_of_this_machine_names_nodes(unlocked: Proxy, name: str) -> None:
    statuses = responses(unlocked.port, unlocked.attacks[name])
    assert statuses
    assert set(statuses) <= {400, 403}
    assert unlocked.nodes() == {f"http://{unlocked.node.address}"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "192.0.2.1:80", "LOCALHOST:8000"])
def test_a_program_of_this_machine_may_name_the_proxy_by_address_or_as_localhost(unlocked: Proxy, host: str) -> None:
    body = {"url": f"http://{unlocked.node.address}", "status": {"models": ["m"]}}
    for origin in ({}, {"origin": f"http://{host}"}):
        assert unlocked.http.post("/nodes/add", json=body, headers={"host": host} | origin).status_code == 200
