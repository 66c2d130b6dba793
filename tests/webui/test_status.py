"""The server's metrics, as they are read and shown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.support.chat_page import ChatPage
from tests.support.gateways import running_page
from tests.support.http_host import Reply, Request, running_host
from webui.metrics import Sample, Watch, default_metrics_url, metrics_of
from webui.status import NONE, POLL_SECONDS, plot, status_html

PAGE = """# HELP turbomind_requests_running Requests in the batch.
turbomind_requests_running{model="a"} 2
turbomind_requests_running{model="b} c"} 1
turbomind_requests_waiting 0
turbomind_cache_blocks_used 5
turbomind_cache_blocks_total 20
turbomind_tokens_out_total 1.5e+03
turbomind_tokens_in_total 400
turbomind_prefix_cache_queries_total 300
turbomind_prefix_cache_hits_total 75
broken line
"""
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}]}


def test_metrics_of_several_models_are_added_up() -> None:
    metrics = metrics_of(PAGE)
    assert (metrics["running"], metrics["waiting"], metrics["generated"]) == (3, 0, 1500)
    assert metrics["cache"] == 5 / 20
    assert metrics_of("vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_running 1") == {"cache": 0.5, "running": 1}
    assert metrics_of("<html>") == {}


def test_rates_are_what_counters_grew_by_in_a_second() -> None:
    watch = Watch("")
    watch.samples.extend(Sample(at, {"generated": count}) for at, count in ((0, 10), (2, 30), (3, 0), (4, 7)))
    assert watch.rates("generated") == [10, 0, 7]
    assert watch.rates("prompt") == [None] * 3


def test_metrics_stand_alongside_the_api_or_on_tritons_port() -> None:
    assert default_metrics_url("https://host:1/v1/") == "https://host:1/metrics"
    assert default_metrics_url("host:8001") == "http://host:8002/metrics"
    assert default_metrics_url("[::1]:8001") == "http://[::1]:8002/metrics"


def test_a_plot_ends_at_the_right_and_begins_at_the_bottom() -> None:
    drawn = plot([0.0, None, 2.0], room=5, highest=4.0)
    assert 'polyline points="160.0,84.0 320.0,44.0"' in drawn
    assert "points" in plot([], 5)


class Server:
    """A server with models and metrics, that counts who asks for the latter."""

    def __init__(self) -> None:
        self.reported = PAGE

    def respond(self, request: Request) -> Reply:
        if request.path == "/metrics":
            return Reply(self.reported.encode(), headers={"content-type": "text/plain"})
        described = {"modalities": {"vision": False}} if request.path == "/props" else MODELS
        return Reply(json.dumps(described).encode(), headers={"content-type": "application/json"})

    @property
    def requests(self) -> int:
        return self.host.visits.count("GET /metrics")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with running_host(server.respond) as server.host:
        yield server


async def test_the_server_is_asked_once_for_all_who_look(server: Server) -> None:
    watch = Watch(f"{server.host.url}/metrics", every=60)
    assert "Running requests" in await status_html(watch)
    assert "5 of 20 blocks" in await status_html(watch)
    assert server.requests == 1
    await watch.close()


async def test_a_server_without_metrics_is_reported(server: Server) -> None:
    server.reported = "<html>"
    for url in (f"{server.host.url}/metrics", "http://127.0.0.1:9/metrics"):
        watch = Watch(url)
        assert await status_html(watch) == NONE
        await watch.close()


@pytest.mark.browser
def test_metrics_are_asked_for_while_their_tab_is_open(server: Server, driver: webdriver.Chrome) -> None:
    with running_page(server.host.url) as url:
        page = ChatPage(driver, url)
        try:
            page.wait(lambda: page.status == "ready")
            page.wait(lambda: not driver.find_elements(By.CSS_SELECTOR, "#question .upload-button"))  # text alone
            assert server.requests == 0
            page.open_tab("Status")
            page.wait(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#status svg")) == 6)
            page.wait(lambda: server.requests >= 3)
            tiles = ["3", "0", "0.0 tokens/s", "0.0 tokens/s", "25.0%", "25.0%"]  # 5 of 20 blocks; 75 of 300 tokens
            page.wait(
                lambda: [element.text for element in driver.find_elements(By.CSS_SELECTOR, "#status .now")] == tiles
            )
            page.open_tab("Chat")
            previous = -1
            for _ in range(5):  # what was under way comes to its end; then nobody asks
                previous, before = server.requests, previous
                if previous == before:
                    break
                time.sleep(2 * POLL_SECONDS)
            assert server.requests == before
        finally:
            page.close()
