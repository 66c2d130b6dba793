"""Whom a proxy believes: who may name nodes, where nodes may be, and what their refusals mean."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import httpx
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from openai_gateway.errors import ApiError
from openai_gateway.middleware.api_keys import CALLER, digest_for_node
from openai_gateway.proxy.addresses import CheckedResolver, checked_url
from openai_gateway.proxy.settings import ProxySettings
from openai_gateway.settings import Settings
from openai_gateway.stored_responses.record import Bounds, ResponseStore, StoredResponse
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway, running_proxy
from tests.support.waiting import eventually_sync

NODE = {"url": "http://127.0.0.1:1", "status": {"models": ["m"]}}
FROM_AFAR = {"x-forwarded-for": "203.0.113.9"}  # uvicorn believes it of a proxy on this machine
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def proxy_of(stack: ExitStack, **settings: Any) -> httpx.Client:
    url = stack.enter_context(running_proxy(ProxySettings(**settings)))
    return stack.enter_context(httpx.Client(base_url=url, trust_env=False))


def node_of(stack: ExitStack, **settings: Any) -> tuple[FakeTriton, str]:
    fake = FakeTriton("m")
    stack.callback(fake.stop)
    return fake, stack.enter_context(running_gateway(Settings(triton_address=fake.address, **settings)))


@pytest.mark.parametrize("headers", [FROM_AFAR, {"origin": "http://evil.example"}], ids=["afar", "a page"])
def test_only_this_machine_names_nodes_where_no_key_is_set(stack: ExitStack, headers: dict[str, str]) -> None:
    proxy = proxy_of(stack)
    assert proxy.post("/nodes/add", json=NODE, headers=headers).status_code == 403
    assert proxy.get("/nodes/status").json() == {}
    proxy.post("/nodes/add", json=NODE)
    assert proxy.post("/nodes/remove", params={"node_url": NODE["url"]}, headers=headers).status_code == 403
    assert set(proxy.get("/nodes/status").json()) == {NODE["url"]}


@pytest.mark.parametrize("api_keys", [(), ("user",)])
def test_an_administrator_s_key_names_nodes_and_no_other(stack: ExitStack, api_keys: tuple[str, ...]) -> None:
    proxy = proxy_of(stack, admin_keys=("admin",), api_keys=api_keys, allow_private_nodes=True)
    for key in ("user", "wrong"):
        headers = {"authorization": f"Bearer {key}"}
        assert proxy.post("/nodes/add", json=NODE, headers=headers).status_code == 401
        assert proxy.post("/nodes/remove", params={"node_url": "http://a"}, headers=headers).status_code == 401
    assert proxy.post("/nodes/add", json=NODE).status_code == 401
    admin = {"authorization": "Bearer admin"} | FROM_AFAR
    assert proxy.post("/nodes/add", json=NODE, headers=admin).json() == "Added successfully"
    assert proxy.post("/nodes/remove", params={"node_url": NODE["url"]}, headers=admin).status_code == 200


def test_a_server_registers_with_the_proxy_s_key(stack: ExitStack) -> None:
    proxy = proxy_of(stack, admin_keys=("admin",))
    url = str(proxy.base_url).rstrip("/")
    node_of(stack, proxy_url=url, proxy_key="admin", public_url="http://127.0.0.1:9")
    eventually_sync(lambda: set(proxy.get("/nodes/status").json()) == {"http://127.0.0.1:9"})


BAD = [
    "ftp://a.example",
    "file:///etc/passwd",
    "a.example:80",
    "http://",
    "http://user@a.example",
    "http://a.example/path",
    "http://a.example?x=1",
    "http://a.example?",
    "http://a.example#x",
    "http://a.example:99999",
    "http://a.example:0",
    "http://a.example:x",
    "http://[::1",
    "http://a b.example",
    "http://a.example\\@b.example",
    "http://a.example\n",
]
PRIVATE = [
    "http://10.0.0.1",
    "http://172.16.0.1:80",
    "http://192.168.1.1",
    "http://100.64.0.1",
    "http://[fd00::1]",
    "http://127.0.0.1",
    "http://[::1]",
    "http://localhost",
]
NEVER = [
    "http://169.254.169.254",
    "http://[fe80::1]",
    "http://[fe80::1%25eth0]",
    "http://224.0.0.1",
    "http://[ff02::1]",
]


@pytest.mark.parametrize("url", [*BAD, *NEVER])
def test_an_address_no_node_has_is_refused(url: str) -> None:
    with pytest.raises(ApiError) as caught:
        checked_url(url, allow_private=True, from_this_machine=True)
    assert (caught.value.status, caught.value.param) == (400, "url")


@pytest.mark.parametrize("url", PRIVATE)
def test_private_addresses_have_to_be_allowed(url: str) -> None:
    with pytest.raises(ApiError, match="--allow-private-nodes"):
        checked_url(url, allow_private=False, from_this_machine=False)
    assert checked_url(url, allow_private=True, from_this_machine=False) == url


@pytest.mark.parametrize("url", ["http://0.0.0.0:80", "http://[::]:80", "http://[::ffff:10.0.0.1]:80"])
def test_private_addresses_are_known_in_every_form(url: str) -> None:
    with pytest.raises(ApiError, match="--allow-private-nodes"):
        checked_url(url, allow_private=False, from_this_machine=False, peer="10.0.0.1")
    assert checked_url(url, allow_private=True, from_this_machine=False, peer="10.0.0.1") == "http://10.0.0.1:80"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000"])
def test_this_machine_may_name_itself(url: str) -> None:
    assert checked_url(url + "/", allow_private=False, from_this_machine=True) == url


@pytest.mark.parametrize("url", ["http://203.0.113.9:80", "http://10.0.0.1"])
def test_this_machine_may_not_name_private_ones(url: str) -> None:
    with pytest.raises(ApiError):
        checked_url(url, allow_private=False, from_this_machine=True)


@pytest.mark.parametrize(
    "url", ["https://a.example", "http://8.8.8.8:80", "http://[2606:4700::1]:80", "http://node_1:80"]
)
def test_public_addresses_and_names_are_taken(url: str) -> None:
    assert checked_url(url, allow_private=False, from_this_machine=False) == url


class Names(AbstractResolver):
    """Resolves every name to the same addresses."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


async def test_a_name_that_comes_to_mean_a_private_address_is_not_connected_to() -> None:
    names = Names("10.0.0.1", "8.8.8.8", "127.0.0.1", "169.254.169.254")

    async def found(host: str, allow_private: bool) -> list[str]:
        resolver = CheckedResolver(allow_private=allow_private, resolver=names)
        return [one["host"] for one in await resolver.resolve(host, 80)]

    assert await found("a.example", False) == ["8.8.8.8"]
    assert await found("localhost", False) == ["8.8.8.8", "127.0.0.1"]
    assert await found("a.example", True) == ["10.0.0.1", "8.8.8.8", "127.0.0.1"]
    with pytest.raises(OSError, match=r"a\.example"):
        await CheckedResolver(allow_private=False, resolver=Names("127.0.0.1")).resolve("a.example", 80)


def test_a_503_about_a_request_leaves_its_node_in_service(stack: ExitStack) -> None:
    fake, node = node_of(stack)
    proxy = proxy_of(stack)
    proxy.post("/nodes/add", json={"url": node})
    fake.script = Script(fail_after=0, error=(grpc.StatusCode.UNAVAILABLE, "too many requests wait"))
    assert proxy.post("/v1/chat/completions", json=BODY).status_code == 503
    assert set(proxy.get("/nodes/status").json()) == {node}
    fake.script = Script()
    assert proxy.post("/v1/chat/completions", json=BODY).status_code == 200
    fake.ready = False
    fake.script = Script(fail_after=0, error=(grpc.StatusCode.UNAVAILABLE, "going down"))
    assert proxy.post("/v1/chat/completions", json=BODY).status_code == 503
    assert proxy.get("/nodes/status").json() == {}


def test_only_successes_are_timed(stack: ExitStack) -> None:
    _, node = node_of(stack)
    proxy = proxy_of(stack)
    proxy.post("/nodes/add", json={"url": node})

    def latencies() -> int:
        return len(proxy.get("/nodes/status").json()[node]["latency"])

    assert proxy.post("/v1/chat/completions", json=BODY | {"temperature": 9}).status_code == 400
    assert latencies() == 0
    assert proxy.post("/v1/chat/completions", json=BODY).status_code == 200
    assert latencies() == 1
    assert "DONE" in proxy.post("/v1/chat/completions", json=BODY | {"stream": True}).text
    eventually_sync(lambda: latencies() == 2)


def test_callers_of_a_proxy_stay_apart_at_its_nodes(stack: ExitStack) -> None:
    fake, node = node_of(stack, api_keys=("alice", "nodes"), node_key="nodes", cache_salt_by_key=True)
    proxy = proxy_of(stack, node_key="nodes", api_keys=("alice", "bob"))
    alice = {"authorization": "Bearer alice"}
    assert proxy.post("/nodes/add", json={"url": node}, headers=alice).status_code == 200
    made = proxy.post("/v1/responses", json={"model": "m", "input": "Hello"}, headers=alice).json()
    of_alice = digest_for_node("nodes", "alice")
    request = {"model": "m", "input": "And?", "previous_response_id": made["id"]}
    for url, key, named, status in (
        (str(proxy.base_url), "bob", None, 400),
        (str(proxy.base_url), "bob", of_alice, 400),  # only proxies say who calls
        (str(proxy.base_url), "alice", None, 200),
        (node, "alice", None, 200),  # the same caller, straight
        (node, "alice", digest_for_node("nodes", "bob"), 200),
        (node, "nodes", None, 400),
        (node, "nodes", "alice", 400),
        (node, "bob", of_alice, 401),
    ):
        headers = {"authorization": f"Bearer {key}"} | ({} if named is None else {CALLER: named})
        response = httpx.post(f"{url.rstrip('/')}/v1/responses", json=request, headers=headers, trust_env=False)
        assert response.status_code == status, (url, key, named, response.text)
    identities = {}
    for key in ("alice", "bob"):
        proxy.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {key}"})
        identities[key] = {name: fake.requests[-1].inputs[name] for name in ("cache_salt", "caller")}
    httpx.post(f"{node}/v1/chat/completions", json=BODY, headers=alice, trust_env=False)
    assert {name: fake.requests[-1].inputs[name] for name in ("cache_salt", "caller")} == identities["alice"]
    assert not set(identities["alice"].values()) & set(identities["bob"].values())


async def test_callers_of_a_proxy_fill_no_memory_however_many_they_are() -> None:
    store = ResponseStore(None, Bounds(1000, 100), 3000)
    texts = {f"resp_{number}": StoredResponse({"id": f"resp_{number}"}, [{"a": "x" * 700}]) for number in range(9)}
    for name, stored in texts.items():
        assert await store.put(f"key of {name}", stored)
    kept = [name for name in texts if await store.get(f"key of {name}", name)]
    assert len(kept) in (3, 4)
    assert "resp_8" in kept
