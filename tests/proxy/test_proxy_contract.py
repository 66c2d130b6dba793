"""Proxy contract of LMDeploy 0.6.5's servers and users: section B8 of the REST contract, a line each.

Failures are not: there, a node that cannot be asked and one that never was are answered with 200.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openai_gateway.proxy.settings import ProxySettings
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway, running_proxy
from tests.support.http_host import Reply, running_host
from tests.support.waiting import eventually_sync

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with FakeTriton("m") as made:
        yield made


@pytest.fixture
def proxy() -> Iterator[httpx.Client]:
    with running_proxy(ProxySettings()) as url, httpx.Client(base_url=url, trust_env=False) as http:
        yield http


# id, body, what the proxy then says about the node
STATUSES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("B8 a whole status", {"models": ["a", "b"], "unfinished": 0, "latency": [], "speed": None}, {}),
    ("B8 models alone", {"models": ["a"]}, {"unfinished": 0, "latency": [], "speed": None}),
    ("B8 a speed", {"models": ["a"], "speed": 3}, {"speed": 3.0}),
]


@pytest.mark.parametrize(("status", "expected"), [case[1:] for case in STATUSES], ids=[case[0] for case in STATUSES])
def test_nodes_are_added_with_what_is_known_of_them(
    proxy: httpx.Client, status: dict[str, Any], expected: dict[str, Any]
) -> None:
    added = proxy.post("/nodes/add", json={"url": NOWHERE, "status": status})
    assert (added.status_code, added.json()) == (200, "Added successfully")
    (reported,) = proxy.get("/nodes/status").json().values()
    assert reported | status | expected == reported
    removed = proxy.post("/nodes/remove", params={"node_url": NOWHERE})
    assert (removed.status_code, removed.json()) == (200, "Deleted successfully")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_b8_an_unknown_model_is_a_404_in_lmdeploy_s_words(proxy: httpx.Client, path: str) -> None:
    response = proxy.post(path, json={"model": "X", "messages": "a", "prompt": "a"})
    assert response.status_code == 404
    body = response.json()
    assert (body["message"], body["code"], body["object"]) == ("The model `X` does not exist.", 404, "error")


@pytest.mark.parametrize("path", ["/v1/chat/interactive", "/v1/encode"])
def test_b8_what_is_not_proxied_is_a_404(proxy: httpx.Client, path: str) -> None:
    assert proxy.post(path, json={}).status_code == 404


def test_b8_the_models_of_all_nodes_are_listed_as_cards(proxy: httpx.Client) -> None:
    proxy.post("/nodes/add", json={"url": NOWHERE, "status": {"models": ["a", "b"]}})
    listed = proxy.get("/v1/models").json()
    assert [card["id"] for card in listed["data"]] == ["a", "b"]
    assert {"id", "object", "created", "owned_by", "root", "parent", "permission"} <= set(listed["data"][0])


def test_b8_a_request_reaches_its_node_without_the_caller_s_key(proxy: httpx.Client, fake: FakeTriton) -> None:
    with running_gateway(Settings(triton_address=fake.address, api_keys=("of-the-node",))) as node:
        proxy.post("/nodes/add", json={"url": node, "status": {"models": ["m"]}})
        headers = {"authorization": "Bearer of-the-node"}
        response = proxy.post("/v1/completions", json={"model": "m", "prompt": "a"}, headers=headers)
        assert response.status_code == 401


def test_b8_a_server_registers_by_url_and_models_and_sends_no_key(fake: FakeTriton) -> None:
    with running_host(lambda _: Reply(b'"Added successfully"')) as proxy:
        settings = Settings(
            triton_address=fake.address, proxy_url=proxy.url, public_url="http://0.0.0.0:23333", api_keys=("k",)
        )
        with running_gateway(settings):
            eventually_sync(lambda: bool(proxy.requests))
    seen, body = proxy.requests[0], json.loads(proxy.requests[0].body)
    assert (seen.path, body["url"], body["status"]["models"]) == ("/nodes/add", "http://0.0.0.0:23333", ["m"])
    assert seen.headers["content-type"] == seen.headers["accept"] == "application/json"
    assert "authorization" not in seen.headers
