"""The benchmark's HTTP client, against a real gateway over a scripted Triton."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmdeploy.messages import GenerationConfig
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway
from tools.bench.over_http import run_over_http
from tools.bench.workload import Request

GREEDY = GenerationConfig(do_sample=False)


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    server = FakeTriton()
    yield server
    server.stop()


@pytest.fixture
def url(fake: FakeTriton) -> Iterator[str]:
    with running_gateway(Settings(triton_address=fake.address)) as address:
        yield address


def test_tokens_without_text_of_their_own_are_counted(url: str) -> None:
    # The scripted engine reports two tokens for each of three pieces of text.
    summary = run_over_http(url, [Request("a b c", 6)] * 5, 2, GREEDY)
    assert (summary.requests, summary.output_tokens, summary.input_tokens) == (5, 30, 35)


def test_requests_say_greedy_fixed_length_streaming(fake: FakeTriton, url: str) -> None:
    run_over_http(url, [Request("a b c", 6)], 1, GREEDY)
    inputs = fake.requests[0].inputs
    assert inputs["text_input"] == "a b c"
    assert (inputs["max_new_tokens"], inputs["ignore_eos"], inputs["stream"]) == (6, True, True)
    assert inputs["temperature"] == 0


def test_response_of_another_length_is_an_error(url: str) -> None:
    with pytest.raises(RuntimeError, match="6 tokens, expected 7"):
        run_over_http(url, [Request("a b c", 7)], 1, GREEDY)


def test_failed_request_is_an_error(fake: FakeTriton, url: str) -> None:
    fake.script = Script(fail_after=1)
    with pytest.raises(RuntimeError, match="scripted failure"):
        run_over_http(url, [Request("a b c", 6)], 1, GREEDY)
