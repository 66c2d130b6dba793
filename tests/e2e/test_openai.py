"""The real `openai` client against gateway, tritonserver and the default model."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.metrics import engine_metrics
from tests.support.prompts import CONVERSATIONS
from tests.support.waiting import eventually_sync

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
STREAMS = 16


@pytest.fixture(scope="module")
def client(gateway: str):
    with openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0, timeout=300) as made:
        yield made


def complete(client: openai.OpenAI, messages: Any, **options: Any) -> tuple[str, str]:
    """Return the streamed response's text and finish reason."""
    text, reason = "", None
    options = {"temperature": 0, **options}
    with client.chat.completions.create(model=DEFAULT_MODEL_NAME, messages=messages, stream=True, **options) as stream:
        for chunk in stream:
            piece = chunk.choices[0].delta.content or ""
            assert "\ufffd" not in piece
            text += piece
            reason = chunk.choices[0].finish_reason or reason
    return text, str(reason)


def no_blocks_used(server: TritonServer) -> bool:
    metrics = engine_metrics(server)
    return metrics["cache_blocks_used"] == 0 and metrics["requests_running"] + metrics["requests_waiting"] == 0


def test_the_capital_of_france_is_paris_streamed_and_not(client: openai.OpenAI) -> None:
    text, reason = complete(client, CAPITAL, max_tokens=32)
    whole = client.chat.completions.create(model=DEFAULT_MODEL_NAME, messages=CAPITAL, temperature=0, max_tokens=32)
    assert text == whole.choices[0].message.content == "The capital of France is Paris."
    assert reason == whole.choices[0].finish_reason == "stop"
    assert whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_concurrent_streams_of_different_lengths_are_complete_and_as_if_alone(client: openai.OpenAI) -> None:
    jobs = [(CONVERSATIONS[index % len(CONVERSATIONS)], 8 + index) for index in range(STREAMS)]
    alone = [complete(client, messages, max_tokens=limit) for messages, limit in jobs]
    with ThreadPoolExecutor(STREAMS) as threads:
        together = list(threads.map(lambda job: complete(client, job[0], max_tokens=job[1]), jobs))
    assert together == alone
    assert {reason for _, reason in together} <= {"stop", "length"}


def test_leaving_at_any_moment_leaks_nothing(gateway: str, triton_server: TritonServer, *, all_cases: bool) -> None:
    body = {"model": DEFAULT_MODEL_NAME, "messages": CAPITAL, "max_tokens": 2000, "ignore_eos": True, "stream": True}

    def leave_after(milliseconds: int) -> None:
        with httpx.Client(trust_env=False, timeout=milliseconds / 1000) as http:
            try:
                with http.stream("POST", f"{gateway}/v1/chat/completions", json=body) as response:
                    for _, _ in zip(range(milliseconds % 7), response.iter_lines(), strict=False):
                        pass
            except httpx.TimeoutException:
                pass

    with ThreadPoolExecutor(24) as threads:
        list(threads.map(leave_after, [1 + 37 * index % 600 for index in range(0, 300, 1 if all_cases else 2)]))
    eventually_sync(lambda: no_blocks_used(triton_server))


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        ({"max_tokens": 1_000_000}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, "maximum context length"),
        ({"guided_grammar": "root ::= 中"}, "line 1, column 10"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_s_limits_forbid_is_refused_and_disturbs_nothing(
    gateway: str, triton_server: TritonServer, change: dict[str, Any], needle: str, stream: bool
) -> None:
    body = {"model": DEFAULT_MODEL_NAME, "messages": CAPITAL, "stream": stream, **change}
    response = httpx.post(f"{gateway}/v1/chat/completions", json=body, trust_env=False)
    assert response.status_code == 400, response.text
    assert needle in response.json()["error"]["message"]
    eventually_sync(lambda: no_blocks_used(triton_server))


def test_the_reported_context_is_the_one_that_limits_are_held_against(gateway: str) -> None:
    card = httpx.get(f"{gateway}/v1/models", trust_env=False).json()["data"][0]
    context_len = card["max_model_len"]
    body = {"model": DEFAULT_MODEL_NAME, "messages": CAPITAL, "max_completion_tokens": context_len + 1}
    rejected = httpx.post(f"{gateway}/v1/chat/completions", json=body, trust_env=False)
    assert rejected.status_code == 400
    error = rejected.json()["error"]
    assert (error["param"], error["code"]) == ("max_completion_tokens", "invalid_value")
    assert f"at most {context_len} completion tokens" in error["message"]
    shown = httpx.post(f"{gateway}/api/show", json={"model": DEFAULT_MODEL_NAME}, trust_env=False).json()["model_info"]
    assert shown[f"{shown['general.architecture']}.context_length"] == context_len
    prompt = {"model": DEFAULT_MODEL_NAME, "prompt": "word " * (context_len + 10)}
    too_long = httpx.post(f"{gateway}/v1/completions", json=prompt, trust_env=False).json()["error"]
    assert (too_long["param"], too_long["code"]) == ("prompt", "context_length_exceeded")


def test_ollama_s_durations_are_those_of_the_steps(gateway: str) -> None:
    options = {"num_predict": 40, "seed": 1}
    body = {"model": DEFAULT_MODEL_NAME, "prompt": "Tell me a story.", "stream": False, "options": options}
    begin = time.perf_counter()
    reported = httpx.post(f"{gateway}/api/generate", json=body, trust_env=False).json()
    seconds = time.perf_counter() - begin
    assert reported["eval_count"] > 5
    assert reported["eval_duration"] / 1e9 > 1e-3  # a single step of this model on a CPU takes longer
    assert (
        (reported["prompt_eval_duration"] + reported["eval_duration"]) / 1e9
        <= reported["total_duration"] / 1e9
        <= seconds
    )
