"""The proxy, and which node its strategies choose."""

import asyncio
import json
import re
import socket
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy.serve.affinity import SLACK
from lmdeploy.serve.ports import free_ports
from openai_gateway.proxy.node import Node
from openai_gateway.proxy.nodes import NodeTable
from openai_gateway.proxy.prompt import ForwardedBody, Prompt
from openai_gateway.proxy.settings import ProxySettings
from openai_gateway.proxy.strategies import (
    STRATEGIES,
    PrefixAffinity,
    by_chance,
    min_expected_latency,
    min_observed_latency,
)
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway, running_proxy
from tests.support.http_host import QuietHandler, serving
from tests.support.waiting import eventually, eventually_sync

HELLO: Any = [{"role": "user", "content": "Hello"}]
REPLY = "The capital of France is Paris."
QUICK = {"check_seconds": 0.2, "return_seconds": 0.1, "retry_seconds": 3.0}
PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>"
STREAM_OF_NOTHING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class Nodes:
    """Gateways over fake engines, one for each model name given."""

    def __init__(self, stack: ExitStack, *models: str) -> None:
        self.fakes = [FakeTriton(model) for model in models]
        for fake in self.fakes:
            stack.callback(fake.stop)
        self.urls = [stack.enter_context(running_gateway(Settings(triton_address=fake.address))) for fake in self.fakes]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def connect(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False)


def proxied(stack: ExitStack, *models: str, **settings: Any) -> tuple[Nodes, httpx.Client]:
    """Return nodes, and a client of a proxy that knows them."""
    nodes = Nodes(stack, *models)
    proxy = stack.enter_context(connect(stack.enter_context(running_proxy(ProxySettings(**settings)))))
    for url in nodes.urls:
        proxy.post("/nodes/add", json={"url": url}).raise_for_status()
    return nodes, proxy


def test_nodes_are_added_asked_for_their_models_listed_and_removed(stack: ExitStack) -> None:
    nodes = Nodes(stack, "m1", "m2")
    proxy = stack.enter_context(connect(stack.enter_context(running_proxy(ProxySettings()))))
    for url in nodes.urls:
        assert proxy.post("/nodes/add", json={"url": url}).json() == "Added successfully"
    assert proxy.post("/nodes/add", json={"url": nodes.urls[0] + "/"}).json() == "Added successfully"  # twice is once
    status = proxy.get("/nodes/status").json()
    assert set(status) == set(nodes.urls)
    assert status[nodes.urls[0]] == {"models": ["m1"], "unfinished": 0, "latency": [], "speed": None}
    assert [card["id"] for card in proxy.get("/v1/models").json()["data"]] == ["m1", "m2"]
    removed = proxy.post("/nodes/remove", params={"node_url": nodes.urls[0]})
    assert (removed.status_code, removed.json()) == (200, "Deleted successfully")
    for unknown in (nodes.urls[0], "http://never.example:1"):
        rejected = proxy.post("/nodes/remove", params={"node_url": unknown})
        assert (rejected.status_code, rejected.json()["error"]["param"]) == (404, "node_url")
        assert f"There is no node {unknown}" in rejected.json()["error"]["message"]
    assert set(proxy.get("/nodes/status").json()) == {nodes.urls[1]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages/count_tokens", {"messages": HELLO}),
        ("/v1/embeddings", {"input": "a"}),  # which the node refuses in its words
        *((path, {"query": "a", "documents": ["b"]}) for path in ("/v1/rerank", "/rerank", "/v2/rerank")),
        *((path, {"text_1": "a", "text_2": "b"}) for path in ("/v1/score", "/score")),
        *((path, {"input": "a"}) for path in ("/v1/classify", "/classify", "/v1/pooling", "/pooling")),
        ("/detokenize", {"tokens": [1]}),
        ("/tokenize", {"prompt": "a"}),
        ("/v1/responses/input_tokens", {"input": "a"}),
    ],
)
def test_what_is_not_generated_is_sent_on_too(stack: ExitStack, path: str, body: dict[str, Any]) -> None:
    nodes, proxy = proxied(stack, "m")
    through, straight = (http.post(path, json={"model": "m", **body}) for http in (proxy, connect(nodes.urls[0])))
    assert (through.status_code, through.json()) == (straight.status_code, straight.json())
    assert through.status_code == (200 if path.endswith(("_tokens", "tokenize")) else 400)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "GARBAGE"])
def test_a_node_that_cannot_be_asked_is_not_added(stack: ExitStack, url: str) -> None:
    proxy = stack.enter_context(connect(stack.enter_context(running_proxy(ProxySettings()))))
    url = stack.enter_context(garbage_server()) if url == "GARBAGE" else url
    response = proxy.post("/nodes/add", json={"url": url})
    assert (response.status_code, response.json()["error"]["param"]) == (502, "url")
    assert f"{url}/v1/models does not report" in response.json()["error"]["message"]
    assert proxy.get("/nodes/status").json() == {}


def test_a_node_is_one_however_its_host_is_written(stack: ExitStack, tmp_path: Path) -> None:
    state = tmp_path / "nodes.json"
    state.write_text('{"nodes": {"http://0.0.0.0:9": {"models": ["m"]}, "http://localhost:9": {"models": ["m"]}}}')
    proxy = stack.enter_context(connect(stack.enter_context(running_proxy(ProxySettings(state_file=state)))))
    for host in ("0.0.0.0", "[::]", "127.0.0.1", "[::1]", "LOCALHOST", "localhost"):
        node = {"url": f"http://{host}:9", "status": {"models": ["m"]}}
        assert proxy.post("/nodes/add", json=node).status_code == 200
        assert len(proxy.get("/nodes/status").json()) == 1
    assert (
        set(proxy.get("/nodes/status").json()) == set(json.loads(state.read_text())["nodes"]) == {"http://localhost:9"}
    )
    assert proxy.post("/nodes/remove", params={"node_url": "http://0.0.0.0:9/"}).status_code == 200
    assert proxy.get("/nodes/status").json() == json.loads(state.read_text())["nodes"] == {}


def test_a_node_that_stays_away_is_forgotten(stack: ExitStack, tmp_path: Path) -> None:
    settings = ProxySettings(state_file=tmp_path / "nodes.json", evict_seconds=0.5, **QUICK)
    proxy = stack.enter_context(connect(stack.enter_context(running_proxy(settings))))
    with ExitStack() as short:
        nodes = Nodes(short, "m")
        proxy.post("/nodes/add", json={"url": nodes.urls[0]})
        nodes.fakes[0].ready = False
        eventually_sync(lambda: proxy.get("/nodes/status").json() == {})
        nodes.fakes[0].ready = True
        eventually_sync(lambda: set(proxy.get("/nodes/status").json()) == set(nodes.urls))
    eventually_sync(lambda: json.loads((tmp_path / "nodes.json").read_text()) == {"nodes": {}})
    assert proxy.post("/v1/completions", json={"model": "m", "prompt": "a"}).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 422), ({"url": 5}, 422), ({"url": "ftp://a"}, 400), ({"url": "http://a", "status": {"speed": "x"}}, 422)],
)
def test_a_bad_node_is_refused(stack: ExitStack, body: Any, status: int) -> None:
    proxy = stack.enter_context(connect(stack.enter_context(running_proxy(ProxySettings()))))
    assert proxy.post("/nodes/add", json=body).status_code == status


def test_real_clients_work_through_the_proxy(stack: ExitStack) -> None:
    nodes, proxy = proxied(stack, "m1", "m2")
    client = stack.enter_context(openai.OpenAI(base_url=f"{proxy.base_url}/v1", api_key="x", max_retries=0))
    assert client.chat.completions.create(model="m2", messages=HELLO).choices[0].message.content == REPLY
    chunks = client.chat.completions.create(model="m1", messages=HELLO, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == REPLY
    assert client.completions.create(model="m1", prompt="a").choices[0].text == REPLY
    assert client.responses.create(model="m1", input="a").output_text == REPLY
    assert [len(fake.requests) for fake in nodes.fakes] == [3, 1]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="m3", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as caught:  # a node's refusal is passed on
        client.chat.completions.create(model="m1", messages=HELLO, temperature=9)
    assert caught.value.param == "temperature"


def test_streams_are_not_buffered(stack: ExitStack) -> None:
    nodes, proxy = proxied(stack, "m")
    nodes.fakes[0].script = Script(hold_after=1, resume=True)
    client = stack.enter_context(openai.OpenAI(base_url=f"{proxy.base_url}/v1", api_key="x", max_retries=0))
    chunks = client.chat.completions.create(model="m", messages=HELLO, stream=True)
    first = [next(chunks), next(chunks)]
    assert first[1].choices[0].delta.content == "The capital"  # the engine waits: nothing after it exists yet
    nodes.fakes[0].release.set()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == " of France is Paris."


async def test_a_client_that_leaves_the_proxy_is_cancelled_in_the_engine(stack: ExitStack) -> None:
    nodes, proxy = proxied(stack, "m")
    (fake,) = nodes.fakes
    fake.script = Script(hold_after=1)
    async with httpx.AsyncClient(base_url=proxy.base_url, trust_env=False) as http:
        for stream in (True, False):
            fake.requests.clear()
            body = {"model": "m", "messages": HELLO, "stream": stream}
            asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            await eventually(lambda: bool(fake.requests))
            asking.cancel()
            await eventually(lambda: not fake.stops.empty())
            assert fake.stops.get() == fake.requests[0].id

        async def unfinished() -> int:
            count: int = (await http.get("/nodes/status")).json()[nodes.urls[0]]["unfinished"]
            return count

        async def all_over() -> bool:
            return await unfinished() == 0

        await eventually(all_over)


def test_a_request_waits_for_a_node_that_is_coming_back(stack: ExitStack) -> None:
    nodes, proxy = proxied(stack, "m", **QUICK)
    nodes.fakes[0].ready = False
    eventually_sync(lambda: proxy.get("/nodes/status").json() == {})
    timer = threading.Timer(0.5, setattr, (nodes.fakes[0], "ready", True))
    timer.start()
    assert proxy.post("/v1/completions", json={"model": "m", "prompt": "a"}).status_code == 200
    timer.join()


def test_a_request_waits_no_longer_than_retry_seconds(stack: ExitStack) -> None:
    nodes, proxy = proxied(stack, "m", **QUICK | {"retry_seconds": 0.3})
    nodes.fakes[0].ready = False
    eventually_sync(lambda: proxy.get("/nodes/status").json() == {})
    response = proxy.post("/v1/completions", json={"model": "m", "prompt": "a"})
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("garbage", [b"\x00\xffgarbage\n\n", PAGE, PAGE[:-2], STREAM_OF_NOTHING])
def test_a_node_that_answers_garbage_is_passed_over(stack: ExitStack, garbage: bytes) -> None:
    _, proxy = proxied(stack, "m", strategy="random", **QUICK)
    bad = stack.enter_context(garbage_server(garbage))
    for _ in range(6):
        proxy.post("/nodes/add", json={"url": bad, "status": {"models": ["m"], "speed": 1000.0}})
        assert proxy.post("/v1/completions", json={"model": "m", "prompt": "a"}).status_code == 200


def test_the_nodes_survive_a_restart_of_the_proxy(stack: ExitStack, tmp_path: Path) -> None:
    nodes = Nodes(stack, "m", "m")
    settings = ProxySettings(state_file=tmp_path / "deep" / "nodes.json", **QUICK)
    with running_proxy(settings) as url, connect(url) as proxy:
        for node in nodes.urls:
            proxy.post("/nodes/add", json={"url": node})
        proxy.post("/nodes/add", json={"url": "http://127.0.0.1:1", "status": {"models": ["m"]}})
    with running_proxy(settings) as url, connect(url) as proxy:
        assert set(proxy.get("/nodes/status").json()) == set(nodes.urls)  # the third is not there
        assert proxy.post("/v1/completions", json={"model": "m", "prompt": "a"}).status_code == 200
        proxy.post("/nodes/remove", params={"node_url": nodes.urls[0]})
    with running_proxy(settings) as url, connect(url) as proxy:
        assert set(proxy.get("/nodes/status").json()) == {nodes.urls[1]}


def test_a_damaged_state_file_is_no_obstacle(tmp_path: Path) -> None:
    state = tmp_path / "nodes.json"
    state.write_text('{"nodes": {"http://a": 5')
    with running_proxy(ProxySettings(state_file=state)) as url, connect(url) as proxy:
        assert proxy.get("/nodes/status").json() == {}


def test_servers_register_stay_registered_and_leave(stack: ExitStack) -> None:
    fake = FakeTriton("m")
    stack.callback(fake.stop)
    proxy_port, node_port = free_ports(2)
    settings = Settings(
        triton_address=fake.address,
        proxy_url=f"http://127.0.0.1:{proxy_port}",
        public_url=f"http://127.0.0.1:{node_port}",
        heartbeat_seconds=0.2,
    )
    expected = {settings.public_url}

    def registered(url: str) -> set[str]:
        return set(httpx.get(f"{url}/nodes/status", trust_env=False).json())

    with running_gateway(settings, port=node_port):
        with running_proxy(ProxySettings(**QUICK), proxy_port) as url:  # it comes up after the node
            eventually_sync(lambda: registered(url) == expected)
            httpx.post(f"{url}/nodes/remove", params={"node_url": settings.public_url}, trust_env=False)
            eventually_sync(lambda: registered(url) == expected)
        with running_proxy(ProxySettings(**QUICK), proxy_port) as url:  # without a state file
            eventually_sync(lambda: registered(url) == expected)
            stack.enter_context(running_proxy(ProxySettings()))
            fake.ready = False
            eventually_sync(lambda: registered(url) == set())
            fake.ready = True
            eventually_sync(lambda: registered(url) == expected)


def test_a_server_that_stops_leaves_the_proxy(stack: ExitStack) -> None:
    fake = FakeTriton("m")
    stack.callback(fake.stop)
    url = stack.enter_context(running_proxy(ProxySettings()))
    with running_gateway(Settings(triton_address=fake.address, proxy_url=url, public_url="http://127.0.0.1:9")):
        eventually_sync(lambda: bool(httpx.get(f"{url}/nodes/status", trust_env=False).json()))
    assert httpx.get(f"{url}/nodes/status", trust_env=False).json() == {}


@pytest.mark.parametrize("is_proxy", [False, True])
def test_the_documentation_asks_no_other_host(stack: ExitStack, is_proxy: bool) -> None:
    """Neither for the page's own files, nor for a key."""
    fake = FakeTriton("m")
    stack.callback(fake.stop)
    running = (
        running_proxy(ProxySettings(api_keys=("k",)))
        if is_proxy
        else running_gateway(Settings(triton_address=fake.address, api_keys=("k",)))
    )
    http = stack.enter_context(connect(stack.enter_context(running)))
    page = http.get("/").text
    assert "//" not in page.replace("<!--", "")
    named = [*re.findall(r'(?:src|href)="([^"]+)"', page), *re.findall(r"url: '([^']+)'", page)]
    kinds = [http.get(f"/{path}").raise_for_status().headers["content-type"] for path in named]
    assert sorted(kind.partition(";")[0] for kind in kinds) == [
        "application/json",
        "image/png",
        "text/css",
        "text/javascript",
    ]


@contextmanager
def garbage_server(garbage: bytes = b"\x00\xffgarbage\n\n") -> Iterator[str]:
    """A server that is healthy and answers the same bytes to everything else."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()
            else:
                self._garbage()

        def do_POST(self) -> None:
            self._garbage()

        def _garbage(self) -> None:
            self.wfile.write(garbage)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_WR)

    with serving(Handler) as url:
        yield url


def node(name: str, **state: object) -> Node:
    return Node(name, ["m"], **state)  # type: ignore[arg-type]


def test_chance_follows_speed_and_the_mean_stands_in_for_what_is_not_reported() -> None:
    nodes = [node("slow", speed=1.0), node("fast", speed=3.0), node("silent")]
    chosen = Counter(by_chance(nodes).url for _ in range(12_000))
    # expected 2000, 6000, 4000; six standard deviations of a binomial are below 330
    assert abs(chosen["slow"] - 2000) < 330
    assert abs(chosen["fast"] - 6000) < 330
    assert abs(chosen["silent"] - 4000) < 330


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.1, 100)), min_size=1, max_size=6))
def test_the_least_expected_latency_wins(states: list[tuple[int, float]]) -> None:
    nodes = [node(str(i), unfinished=unfinished, speed=speed) for i, (unfinished, speed) in enumerate(states)]
    chosen = min_expected_latency(nodes)
    assert chosen.speed is not None
    assert (chosen.unfinished + 1) / chosen.speed == min((count + 1) / speed for count, speed in states)


def test_equals_share_the_work() -> None:
    nodes = [node("a"), node("b")]
    assert set(Counter(min_expected_latency(nodes).url for _ in range(100))) == {"a", "b"}


def test_the_least_observed_latency_wins_and_newcomers_are_tried() -> None:
    quick, slow = node("quick", latency=deque([1.0, 2.0])), node("slow", latency=deque([3.0]))
    assert min_observed_latency([slow, quick]) is quick
    assert min_observed_latency([slow, quick, node("new")]).url == "new"


def test_an_adapter_stays_where_it_is_loaded_until_that_node_is_busy() -> None:
    nodes, choose = [node("a"), node("b"), node("c")], PrefixAffinity()
    for one in nodes:
        one.models.append("adapter")
    prompt = Prompt(ForwardedBody(model="adapter", prompt="short"))
    first = choose(nodes, prompt)
    first.unfinished = SLACK
    assert {choose(nodes, prompt).url for _ in range(20)} == {first.url}
    first.unfinished += 1
    assert choose(nodes, prompt) is not first
    first.unfinished = 0
    assert {choose(nodes, Prompt(ForwardedBody(model="m", prompt="short"))).url for _ in range(99)} == {"a", "b", "c"}


def test_sessions_and_long_prefixes_stay_with_the_node_that_has_them(stack: ExitStack) -> None:
    _, proxy = proxied(stack, "m", "m", strategy="affinity")

    def asked(text: str, session: str = "") -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        headers = {"x-session-id": session} if session else {}
        return proxy.post("/v1/chat/completions", json=body, headers=headers).raise_for_status().headers["x-replica"]

    turns = [(f"Document {number}. " * 60, f"session {number}") for number in range(12)] * 3
    by_prefix, by_session = defaultdict(set), defaultdict(set)
    for turn, (document, session) in enumerate(turns):
        by_prefix[document].add(asked(document + str(turn)))
        by_session[session].add(asked(str(turn), session))
    assert {len(replicas) for replicas in (*by_prefix.values(), *by_session.values())} == {1}
    assert len(set().union(*by_prefix.values())) == len(set().union(*by_session.values())) == 2


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_nodes_in_service_with_the_model_are_chosen(strategy: str) -> None:
    table = NodeTable(STRATEGIES[strategy](), None)
    table.add("http://a", ["m"], None)
    table.add("http://b", ["other"], None)
    table.add("http://c", ["m"], None)
    (down,) = [node for node in table if node.url == "http://c"]
    table.mark_down(down, "test")
    assert {table.choose("m").url for _ in range(20)} == {"http://a"}  # type: ignore[union-attr]
    assert table.choose("m", {"http://a"}) is None
    assert table.choose("nothing") is None
    assert table.models == ["m", "other"]
