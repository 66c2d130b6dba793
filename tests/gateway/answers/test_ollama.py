"""Ollama's API, with its own client, unmodified."""

import base64
import json
from typing import Any

import httpx
import numpy as np
import ollama
import pytest

from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.gateway.test_embeddings import embedder, expected
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway

__all__ = ["embedder"]

HELLO = [{"role": "user", "content": "Hello"}]
ANSWER = "The capital of France is Paris."
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn", "days": 2}}\n</tool_call>'
PIXEL = base64.b64encode(b"\x89PNG").decode()


@pytest.fixture
def client(triton: FakeTriton, url: str) -> ollama.Client:
    return ollama.Client(url, trust_env=False)


def test_a_chat_whole_and_streamed(client: ollama.Client, triton: FakeTriton) -> None:
    whole = client.chat(MODEL, HELLO)
    assert (whole.message.content, whole.message.role, whole.done, whole.done_reason) == (
        ANSWER,
        "assistant",
        True,
        "stop",
    )
    assert (whole.prompt_eval_count, whole.eval_count) == (7, 2)
    assert whole.total_duration is not None
    assert whole.total_duration > 0
    pieces = list(client.chat(f"{MODEL}:latest", HELLO, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == ANSWER
    assert len(pieces) == 4
    assert [piece.done for piece in pieces] == [False, False, False, True]
    assert (pieces[-1].done_reason, pieces[-1].eval_count) == ("stop", 6)
    assert [request.inputs["stream"] for request in triton.requests] == [False, True]


def test_options_formats_and_pictures_reach_the_engine(client: ollama.Client, triton: FakeTriton) -> None:
    options: Any = {
        "temperature": 0.5,
        "top_k": 3,
        "repeat_penalty": 1.25,
        "num_predict": 9,
        "seed": 4,
        "num_ctx": 2048,
    }
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    seen = [{"role": "user", "content": "What is it?", "images": [PIXEL]}]
    client.chat(MODEL, [{"role": "system", "content": "Be brief."}, *HELLO], options=options, format=schema)
    client.chat(MODEL, HELLO, format="json", options={"num_predict": -1, "stop": ["x"]})
    client.chat(MODEL, seen)
    first, second, third = (request.inputs for request in triton.requests)
    assert (first["temperature"], first["top_k"], first["repetition_penalty"]) == (0.5, 3, 1.25)
    assert (first["max_new_tokens"], first["random_seed"]) == (9, 4)
    assert json.loads(first["response_format"])["json_schema"]["schema"] == schema
    assert [message["role"] for message in json.loads(first["messages"])] == ["system", "user"]
    assert (json.loads(second["response_format"]), second["stop_words"]) == ({"type": "json_object"}, ["x"])
    parts = json.loads(third["messages"])[0]["content"]
    assert parts[0]["image_url"]["url"].endswith(PIXEL)
    assert parts[1] == {"type": "text", "text": "What is it?"}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_calls_come_whole_and_go_back(client: ollama.Client, triton: FakeTriton, is_streamed: bool) -> None:
    triton.script = Script(texts=["Well. ", *(CALL[i : i + 7] for i in range(0, len(CALL), 7))])
    answer: Any = client.chat(MODEL, HELLO, tools=[TOOL], stream=is_streamed)
    pieces = list(answer) if is_streamed else [answer]
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get_weather", {"city": "Bonn", "days": 2})
    ]
    assert "".join(piece.message.content or "" for piece in pieces).strip() == "Well."
    triton.reset()
    back = [
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
    ]
    client.chat(MODEL, [*HELLO, *back], tools=[TOOL])
    messages = json.loads(triton.requests[0].inputs["messages"])
    sent = messages["messages"] if isinstance(messages, dict) else messages
    function = sent[1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("get_weather", {"city": "Bonn", "days": 2})
    assert (sent[2]["role"], sent[2]["content"], sent[2]["name"]) == ("tool", "sunny", "get_weather")


def test_thoughts_come_apart(triton: FakeTriton) -> None:
    triton.script = Script(texts=["<think>Hm", "m.</think>", "Paris."])
    with running_gateway(Settings(triton_address=triton.address, reasoning_parser="qwen3")) as url:
        own = ollama.Client(url, trust_env=False)
        whole = own.chat(MODEL, HELLO, think=True)
        assert (whole.message.thinking, whole.message.content) == ("Hmm.", "Paris.")
        pieces = list(own.generate(MODEL, "Hello", stream=True))
    assert "".join(piece.thinking or "" for piece in pieces) == "Hmm."
    assert "".join(piece.response for piece in pieces) == "Paris."
    options = json.loads(triton.requests[0].inputs["messages"])["chat_template_kwargs"]
    assert options["enable_thinking"] is True


def test_generate_asks_a_question_or_goes_on(client: ollama.Client, triton: FakeTriton) -> None:
    assert client.generate(MODEL, "Hello", system="Be brief.").response == ANSWER
    assert client.generate(MODEL, "Once upon", raw=True).response == ANSWER
    question, plain = (request.inputs for request in triton.requests)
    assert [message["content"] for message in json.loads(question["messages"])] == ["Be brief.", "Hello"]
    assert plain["text_input"] == "Once upon"
    with pytest.raises(ollama.ResponseError, match="fills in no middles"):
        client.generate(MODEL, "def f():", suffix="return 1")


def test_a_middle_is_asked_for_and_ended_as_the_model_does_it(triton: FakeTriton) -> None:
    with running_gateway(Settings(triton_address=triton.address, chat_template="codellama")) as url:
        own = ollama.Client(url, trust_env=False)
        own.generate(MODEL, "def f():", suffix="return 1", options={"stop": ["x"]})
    inputs = triton.requests[0].inputs
    assert (inputs["text_input"], inputs["stop_words"]) == ("<PRE> def f(): <SUF>return 1 <MID>", ["x", "<EOT>"])


def test_what_there_is(client: ollama.Client, url: str) -> None:
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert client.show(MODEL).capabilities == ["completion", "tools"]
    assert httpx.get(f"{url}/api/version", trust_env=False).json()["version"]


def test_texts_become_vectors(embedder: str) -> None:
    answer = ollama.Client(embedder, trust_env=False).embed(MODEL, ["one", "another text"])
    np.testing.assert_allclose(answer.embeddings, [expected("one"), expected("another text")], rtol=1e-6)
    assert answer.prompt_eval_count == 14


def test_errors_have_that_apis_form(client: ollama.Client, triton: FakeTriton, url: str) -> None:
    with pytest.raises(ollama.ResponseError, match="The model `nobody` does not exist") as failure:
        client.chat("nobody", HELLO)
    assert failure.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="temperature"):
        client.chat(MODEL, HELLO, options={"temperature": 7.0})
    assert isinstance(httpx.post(f"{url}/api/chat", json={"model": MODEL}, trust_env=False).json()["error"], str)
    triton.script = Script(fail_after=1)
    with pytest.raises(ollama.ResponseError):
        list(client.chat(MODEL, HELLO, stream=True))


def test_a_key_is_needed_where_keys_are(triton: FakeTriton) -> None:
    with running_gateway(Settings(triton_address=triton.address, api_keys=("k",))) as url:
        with pytest.raises(ollama.ResponseError) as failure:
            ollama.Client(url, trust_env=False).list()
        assert failure.value.status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert ollama.Client(url, headers=headers, trust_env=False).chat(MODEL, HELLO).message.content == ANSWER
