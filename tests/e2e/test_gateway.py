"""The gateway in front of the real engine."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from lmdeploy.paths import DEFAULT_MODEL_NAME as MODEL
from lmdeploy.serve.client import TritonClient
from lmdeploy.serve.openai.api_client import APIClient
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from openai_gateway.settings import Settings
from tests.support.gateways import openai_client, running_gateway

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
REPLY = "The capital of France is Paris."


@pytest.fixture(scope="module")
def url(triton_server: TritonServer) -> Iterator[str]:
    settings = Settings(
        triton_address=triton_server.grpc_address,
        triton_metrics_url=triton_server.metrics_url,
        engine_dir=resolve("").path,
    )
    with running_gateway(settings) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai_client(url) as made:
        yield made


@pytest.fixture(scope="module")
def api(url: str) -> Iterator[APIClient]:
    with APIClient(url) as made:
        yield made


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(str(resolve("").path))


def test_greedy_choices_are_equal_and_the_prompt_counts_once(client: openai.OpenAI) -> None:
    one = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0)
    three = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, n=3)
    assert [choice.message.content for choice in three.choices] == [REPLY] * 3
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens


def test_other_apis_answer_as_openais_does(url: str) -> None:
    tool: Any = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude:
        request: Any = {"model": MODEL, "messages": CAPITAL, "max_tokens": 32, "extra_body": {"temperature": 0}}
        for more in ({}, {"tools": [tool], "tool_choice": {"type": "none"}}):
            (block,) = claude.messages.create(**request, **more).content
            assert (block.type, getattr(block, "text", "")) == ("text", REPLY)
        # A response that was begun continues as the whole one does, and its prompt is counted as it is used.
        begun, reminder = "The capital of France", {"role": "system", "content": "Be brief."}
        for messages, rest in (
            ([*CAPITAL, {"role": "assistant", "content": begun}], REPLY.removeprefix(begun)),
            ([*CAPITAL, reminder], None),
        ):
            response = claude.messages.create(**request | {"messages": messages})
            assert rest in (None, getattr(response.content[0], "text", ""))
            used = response.usage.input_tokens + (response.usage.cache_read_input_tokens or 0)
            assert claude.messages.count_tokens(model=MODEL, messages=messages).input_tokens == used
    llama = ollama.Client(url, trust_env=False)
    assert llama.chat(MODEL, CAPITAL, options={"temperature": 0.0}).message.content == REPLY
    pieces = llama.generate(MODEL, CAPITAL[0]["content"], stream=True, options={"temperature": 0.0})
    assert "".join(piece.response for piece in pieces) == REPLY


def test_reasoning_ends_when_its_budget_is_spent(triton_server: TritonServer, tokenizer: Tokenizer) -> None:
    engine_dir = resolve("").path
    settings = Settings(
        triton_address=triton_server.grpc_address, engine_dir=engine_dir, reasoning_parser="deepseek-r1"
    )
    story: Any = [{"role": "user", "content": "Tell me a story."}]
    with running_gateway(settings) as address, openai_client(address) as native:
        request: Any = {"model": MODEL, "messages": story, "temperature": 0, "max_tokens": 40}
        whole: Any = native.chat.completions.create(**request).choices[0].message
        cut = native.chat.completions.create(**request, extra_body={"thinking_budget": 8})
    message: Any = cut.choices[0].message
    assert message.reasoning_content == tokenizer.decode(tokenizer.encode(whole.reasoning_content)[:8]).strip()
    assert (whole.content, bool(message.content)) == ("", True)
    assert cut.usage.completion_tokens == 40


def test_logprobs_are_of_the_tokens_of_the_text(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    response = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, temperature=0, logprobs=True, top_logprobs=4
    ).choices[0]
    content = response.logprobs.content if response.logprobs else None
    assert content is not None
    assert b"".join(bytes(token.bytes or ()) for token in content).decode() == REPLY == response.message.content
    assert [token.token for token in content] == [tokenizer.decode([i]) for i in tokenizer.encode(REPLY, add_bos=False)]
    for token in content:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0]  # greedy takes the most likely
        assert sum(math.exp(value) for value in values) <= 1 + 1e-5


def test_a_bias_forbids_a_token(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    (paris,) = tokenizer.encode(" Paris", add_bos=False)
    options: Any = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 16}
    response = client.chat.completions.create(**options, logit_bias={str(paris): -100})
    assert "Paris" not in (response.choices[0].message.content or "")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**options, logit_bias={"999999": 1})


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("strict", [False, True])
def test_a_call_that_a_model_chooses_to_make_is_held_to_the_schema_of_a_strict_tool(
    client: openai.OpenAI, strict: bool
) -> None:
    history: list[Any] = []
    for town in ("Paris", "London", "Berlin"):  # in other words than the schema's, for the model to copy
        function = {"name": "get_weather", "arguments": json.dumps({"town": town})}
        called = {"role": "assistant", "tool_calls": [{"id": town, "type": "function", "function": function}]}
        history += [{"role": "user", "content": f"The weather in {town}?"}, called]
        history += [
            {"role": "tool", "tool_call_id": town, "content": "Rain."},
            {"role": "assistant", "content": "Rain."},
        ]
    tool: Any = {"type": "function", "function": {**WEATHER["function"], "strict": strict}}
    messages: Any = [*history, {"role": "user", "content": "The weather in Rome?"}]
    request: Any = {"model": MODEL, "messages": messages, "tools": [tool], "temperature": 0, "max_tokens": 100}
    (call,) = client.chat.completions.create(**request).choices[0].message.tool_calls or []
    assert call.type == "function"
    assert set(json.loads(call.function.arguments)) == ({"city", "unit"} if strict else {"town"})


def test_a_model_that_knows_no_tools_is_reported_of_them_and_of_what_they_returned(client: openai.OpenAI) -> None:
    request: Any = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_tokens": 8}
    unseeded = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=8).usage
    reported = client.chat.completions.create(messages=CAPITAL, **request).usage
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    called: Any = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    returned: Any = [*CAPITAL, called, {"role": "tool", "tool_call_id": "1", "content": "Rain."}]
    answered = client.chat.completions.create(messages=returned, **request).usage
    assert unseeded.prompt_tokens + 50 < reported.prompt_tokens < answered.prompt_tokens


def test_text_and_tokens_are_those_of_the_tokenizer(url: str, api: APIClient, tokenizer: Tokenizer) -> None:
    text = "Hello, 世界 🦜!"
    ids = tokenizer.encode(text)
    assert api.encode(text) == (ids, len(ids))
    with httpx.Client(base_url=url, trust_env=False) as http:
        assert http.post("/tokenize", json={"prompt": text}).json()["tokens"] == ids
        assert http.post("/detokenize", json={"tokens": ids}).json()["prompt"] == text
        of_tokens = http.post(
            "/v1/completions", json={"model": MODEL, "prompt": ids, "max_tokens": 8, "temperature": 0}
        ).json()
        of_text = http.post(
            "/v1/completions", json={"model": MODEL, "prompt": text, "max_tokens": 8, "temperature": 0}
        ).json()
    assert of_tokens["choices"][0]["text"] == of_text["choices"][0]["text"]
    for response in (of_tokens, of_text):
        del response["usage"]["prompt_tokens_details"]  # the second finds the first one's prompt in the cache
    assert of_tokens["usage"] == of_text["usage"]


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("words", [300_000, 20_000])
def test_a_turn_that_is_too_long_is_an_empty_response_and_the_conversation_goes_on(api: APIClient, words: int) -> None:
    options: Any = {"session_id": 4712, "interactive_mode": True, "top_k": 1, "request_output_len": 16}
    (first,) = api.chat_interactive_v1("What is the capital of France?", **options)
    for stream in (False, True):
        (output,) = api.chat_interactive_v1("word " * words, stream=stream, **options)
        assert (output["text"], output["tokens"], output["finish_reason"]) == ("", 0, "length")
    (second,) = api.chat_interactive_v1("And of Italy?", **options)
    assert second["history_tokens"] >= first["input_tokens"] + first["tokens"]
    assert second["tokens"] > 0
    api.end_session(4712)


def test_a_cache_report_names_the_part_that_changed_and_tells_other_salts_nothing(
    triton_server: TritonServer, url: str
) -> None:
    def tool(description: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
        return {"type": "function", "function": {"name": "f", "description": description, "parameters": parameters}}

    def report(messages: list[dict[str, str]], of_tool: str, salt: str = "report") -> Any:
        body = {"model": MODEL, "messages": messages, "tools": [tool(of_tool)], "cache_salt": salt, "temperature": 0}
        request = body | {"max_tokens": 4, "include_cache_report": True}
        usage = httpx.post(f"{url}/v1/chat/completions", json=request, trust_env=False).json()["usage"]
        cache_report = usage["cache_report"]
        assert cache_report["found"] == cache_report["device"] == usage["prompt_tokens_details"]["cached_tokens"]
        return cache_report

    async def drop() -> None:
        async with TritonClient(triton_server.grpc_address, control_key=triton_server.control_key) as triton:
            await triton.control_cache("drop_memory")

    first = [{"role": "system", "content": "You are a guide. " * 40}, {"role": "user", "content": "Hi"}]
    second = [*first, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Where are we?"}]
    weather = "Weather of a city. " * 20
    new = {"found": 0, "reason": "nothing is known from token 0 on, in message 1 (system)"}
    assert report(first, weather).items() >= new.items()
    assert report(first, weather).items() >= {"token": None, "reason": None}.items()
    changed = report(second, weather.replace("city", "town"))
    assert changed["reason"] == f"differs at token {changed['token']}, in the tool list"
    assert changed["found"] > 0
    assert report(second, weather)["reason"].endswith((", in message 3 (assistant)", ", in message 2 (user)"))
    assert report(second, weather, "another").items() >= new.items()
    asyncio.run(drop())
    assert re.fullmatch(r"was evicted \d+ s ago from token 0 on", report(first, weather)["reason"])
    assert report(first, weather, "a third").items() >= new.items()
