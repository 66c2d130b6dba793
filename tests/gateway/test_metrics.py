"""Metrics of responses at ``/metrics``, under our names and under those of other servers."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.metrics import page, responses
from openai_gateway.metrics.page import OTHER_NAMES, GatewayMetrics
from openai_gateway.metrics.responses import Watch
from openai_gateway.metrics.tally import Tally
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway
from tests.support.metrics import Metrics, metrics_of
from tests.support.waiting import eventually

BODY: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
def every_page_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_SHARE", float("inf"))


@pytest.fixture
def url(fake: FakeTriton, every_page_is_new: None) -> Iterator[str]:
    with running_gateway(Settings(triton_address=fake.address)) as url:
        yield url


def scrape(url: str) -> Metrics:
    return metrics_of(httpx.get(f"{url}/metrics", trust_env=False).text)


def post(url: str, **fields: Any) -> int:
    return httpx.post(f"{url}/v1/chat/completions", json={**BODY, **fields}, trust_env=False).status_code


def test_a_tally_says_what_single_observations_say() -> None:
    bounds = (1.0, 2.0, 5.0)
    tallied, observed = CollectorRegistry(), CollectorRegistry()
    tally = Tally(Histogram("x", "x", buckets=bounds, registry=tallied))
    reference = Histogram("x", "x", buckets=bounds, registry=observed)
    dice = random.Random(1)
    for turn in range(300):
        value, times = dice.choice((*bounds, 0.0, 7.0, dice.randrange(12) / 2)), dice.randrange(1, 4)
        tally.add(value, times)
        for _ in range(times):
            reference.observe(value)
        if turn % 50 == 49:
            tally.hand_over()
            tally.hand_over()  # nothing twice
    expected, got = (metrics_of(generate_latest(registry).decode()) for registry in (observed, tallied))
    expected.drop("x_created"), got.drop("x_created")
    assert got.values == expected.values
    assert got.one("x_count") > 300


def test_times_are_measured_from_the_request_s_head_and_from_token_to_token(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10.0]
    monkeypatch.setattr(responses, "perf_counter", lambda: clock[0])
    metrics = GatewayMetrics()
    watch = Watch(metrics.responses.of("m"), begin=10.0, choices=1)
    for clock[0], tokens, reason in ((10.5, 1, None), (10.75, 2, None), (11.75, 4, None), (12.0, 5, "length")):
        watch.see(GenerateChunk(generate_token_len=tokens, input_token_len=30, finish_reason=reason))
    metrics_page = metrics_of(metrics.text().decode())
    prefix = "lmdeploy_gateway_"
    assert metrics_page.one(f"{prefix}time_to_first_token_seconds_sum") == pytest.approx(0.5)
    assert metrics_page.one(f"{prefix}inter_token_seconds_sum") == pytest.approx(1.5)
    assert metrics_page.one(f"{prefix}inter_token_seconds_count") == 4
    # Two tokens that came together took half of the time each.
    assert metrics_page.one(f"{prefix}inter_token_seconds_bucket", le="0.5") == 4
    assert metrics_page.one(f"{prefix}inter_token_seconds_bucket", le="0.4") == 2
    assert metrics_page.one(f"{prefix}time_per_output_token_seconds_sum") == pytest.approx(1.5 / 4)
    assert metrics_page.one(f"{prefix}request_latency_seconds_sum") == pytest.approx(2.0)
    assert metrics_page.one(f"{prefix}prompt_tokens_sum") == 30
    assert metrics_page.one(f"{prefix}generation_tokens_sum") == 5
    assert metrics_page.one(f"{prefix}responses_total", finished_reason="length") == 1


def test_every_response_is_counted_once_whatever_the_endpoint(fake: FakeTriton, url: str) -> None:
    assert post(url) == 200
    assert post(url, stream=False, n=2) == 200
    with httpx.Client(base_url=url, trust_env=False) as http:
        prompts = {"model": MODEL, "prompt": ["one", "two"]}
        assert http.post("/v1/completions", json=prompts).status_code == 200
        assert http.post("/v1/responses", json={"model": MODEL, "input": "hi"}).status_code == 200
        assert http.post("/v1/chat/interactive", json={"prompt": "hi"}).status_code == 200
    metrics_page, prefix = scrape(url), "lmdeploy_gateway_"
    # The fake engine streams three pieces of two tokens, counts two in a whole response, and seven in a prompt.
    assert metrics_page.one(f"{prefix}responses_total", finished_reason="stop") == 7
    assert metrics_page.one(f"{prefix}generation_tokens_sum") == 6 + 6 * 2
    assert metrics_page.one(f"{prefix}prompt_tokens_sum") == 6 * 7
    assert metrics_page.one(f"{prefix}request_latency_seconds_count") == 6
    # Of responses that do not stream, nobody sees the first token.
    assert metrics_page.one(f"{prefix}time_to_first_token_seconds_count") == 1
    assert metrics_page.one(f"{prefix}inter_token_seconds_count") == 4
    assert metrics_page.one(f"{prefix}time_per_output_token_seconds_count") == 1


async def test_responses_that_are_left_or_fail_are_separate(fake: FakeTriton, url: str) -> None:
    fake.script = Script(fail_after=1, error=(grpc.StatusCode.INTERNAL, "broken"))
    post(url)
    fake.script = Script(hold_after=1)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        leaving = asyncio.create_task(http.post("/v1/chat/completions", json={**BODY, "n": 2}))
        await eventually(lambda: len(fake.requests) == 2)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)

    def ends(reason: str) -> float:
        return scrape(url).one("lmdeploy_gateway_responses_total", finished_reason=reason)

    await eventually(lambda: ends("abort") == 2)
    assert (ends("error"), ends("stop"), ends("length")) == (1, 0, 0)
    assert scrape(url).one("lmdeploy_gateway_request_latency_seconds_count") == 0


def test_an_interactive_turn_that_begins_again_counts_once(fake: FakeTriton, url: str) -> None:
    turn = {"prompt": "hi", "session_id": 5, "interactive_mode": True}
    assert httpx.post(f"{url}/v1/chat/interactive", json=turn, trust_env=False).status_code == 200
    assert len(fake.requests) == 2  # the engine did not know the session
    metrics_page = scrape(url)
    assert metrics_page.one("lmdeploy_gateway_responses_total", finished_reason="stop") == 1
    assert metrics_page.one("lmdeploy_gateway_responses_total", finished_reason="error") == 0


def test_the_same_is_reported_under_other_servers_names_in_one_series_each(url: str) -> None:
    post(url)
    metrics_page = scrape(url)
    for native, reference in OTHER_NAMES.items():
        mine = metrics_page.of_family(native)
        assert mine
        for name in reference:
            renamed = {
                (sample.replace(native, name, 1), labels | {("engine", "0")}): value
                for (sample, labels), value in mine.items()
            }
            assert metrics_page.of_family(name) == renamed
    assert metrics_page.one("vllm:time_to_first_token_seconds_count", model_name=MODEL, engine="0") == 1
    assert metrics_page.one("vllm:request_success_total", finished_reason="stop", model_name=MODEL, engine="0") == 1


def test_series_are_there_before_the_first_response(url: str) -> None:
    metrics_page = scrape(url)
    for name in (name for names in OTHER_NAMES.values() for name in names):
        assert set(metrics_page.of_family(name).values()) == {0.0}


def test_a_page_is_written_no_more_often_than_its_share_of_the_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.01, 0.2, 0.22, 0.23])
    monkeypatch.setattr(page.time, "perf_counter", lambda: next(clock))
    metrics = GatewayMetrics()
    first = metrics.text()
    metrics.requests.open.inc()
    assert metrics.text() == first  # at 0.2 s: 10 ms of 0.21 s are a twentieth
    assert metrics.text() != first
