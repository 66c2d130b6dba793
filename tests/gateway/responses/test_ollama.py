"""Ollama's API, with its own client, unmodified."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import pytest

from lmdeploy.model_metadata.pooling import write_pooling
from lmdeploy.turbomind.engine_dir import resolve
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.gateway.test_embeddings import embedder, expected, write_modules
from tests.support.fake_triton import AWAKE, CONTEXT_LEN, FakeTriton, Script
from tests.support.gateways import running_gateway

__all__ = ["embedder"]

HELLO = [{"role": "user", "content": "Hello"}]
REPLY = "The capital of France is Paris."
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn", "days": 2}}\n</tool_call>'
PIXEL = base64.b64encode(b"\x89PNG").decode()


@pytest.fixture
def client(triton: FakeTriton, url: str) -> ollama.Client:
    return ollama.Client(url, trust_env=False)


def test_a_chat_whole_and_streamed(client: ollama.Client, triton: FakeTriton) -> None:
    whole = client.chat(MODEL, HELLO)
    assert (whole.message.content, whole.message.role, whole.done, whole.done_reason) == (
        REPLY,
        "assistant",
        True,
        "stop",
    )
    assert (whole.prompt_eval_count, whole.eval_count) == (7, 2)
    assert whole.total_duration is not None
    assert whole.total_duration > 0
    # as the engine measured them, also where the whole response came at once
    assert (whole.prompt_eval_duration, whole.eval_duration) == (500_000_000, 1_000_000_000)
    pieces = list(client.chat(f"{MODEL}:latest", HELLO, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == REPLY
    assert len(pieces) == 4
    assert [piece.done for piece in pieces] == [False, False, False, True]
    assert (pieces[-1].done_reason, pieces[-1].eval_count) == ("stop", 6)
    assert (pieces[-1].prompt_eval_duration, pieces[-1].eval_duration) == (500_000_000, 1_000_000_000)
    assert [request.inputs["stream"] for request in triton.requests] == [False, True]


def test_options_formats_and_images_reach_the_engine(client: ollama.Client, triton: FakeTriton, url: str) -> None:
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
    body = {"model": MODEL, "messages": HELLO, "tools": [TOOL], "tool_choice": "required", "stream": False}
    httpx.post(f"{url}/api/chat", json=body, trust_env=False)
    assert "structural_tag" in triton.requests.pop().inputs["response_format"]
    client.chat(MODEL, HELLO, format={})  # JSON of any form
    assert json.loads(triton.requests.pop().inputs["response_format"]) == {"type": "json_object"}
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
    response: Any = client.chat(MODEL, HELLO, tools=[TOOL], stream=is_streamed)
    pieces = list(response) if is_streamed else [response]
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


def test_reasoning_is_separate(triton: FakeTriton) -> None:
    triton.script = Script(texts=["<think>Hm", "m.</think>", "Paris."])
    with running_gateway(Settings(triton_address=triton.address, reasoning_parser="qwen3")) as url:
        client = ollama.Client(url, trust_env=False)
        whole = client.chat(MODEL, HELLO, think=True)
        assert (whole.message.thinking, whole.message.content) == ("Hmm.", "Paris.")
        pieces = list(client.generate(MODEL, "Hello", stream=True))
    assert "".join(piece.thinking or "" for piece in pieces) == "Hmm."
    assert "".join(piece.response for piece in pieces) == "Paris."
    options = json.loads(triton.requests[0].inputs["messages"])["chat_template_kwargs"]
    assert options["enable_thinking"] is True


def test_generate_asks_a_question_or_goes_on(client: ollama.Client, triton: FakeTriton) -> None:
    assert client.generate(MODEL, "Hello", system="Be brief.").response == REPLY
    assert client.generate(MODEL, "Once upon", raw=True).response == REPLY
    question, unformatted = (request.inputs for request in triton.requests)
    assert [message["content"] for message in json.loads(question["messages"])] == ["Be brief.", "Hello"]
    assert unformatted["text_input"] == "Once upon"
    with pytest.raises(ollama.ResponseError, match="fills in no middles"):
        client.generate(MODEL, "def f():", suffix="return 1")


def test_a_middle_is_asked_for_and_ended_as_the_model_does_it(triton: FakeTriton) -> None:
    with running_gateway(Settings(triton_address=triton.address, chat_template="codellama")) as url:
        client = ollama.Client(url, trust_env=False)
        client.generate(MODEL, "def f():", suffix="return 1", options={"stop": ["x"]})
    inputs = triton.requests[0].inputs
    assert (inputs["text_input"], inputs["stop_words"]) == ("<PRE> def f(): <SUF>return 1 <MID>", ["x", "<EOT>"])


def test_what_there_is(client: ollama.Client, url: str) -> None:
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    described = client.show(MODEL)
    assert described.capabilities == ["completion", "tools", "vision"]
    info: Any = described.modelinfo
    assert info[f"{info['general.architecture']}.context_length"] == CONTEXT_LEN
    version = httpx.get(f"{url}/api/version", trust_env=False).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)  # what `codex --oss` asks for, the most of all known


def test_a_model_whose_directory_is_here_is_described_by_it(triton: FakeTriton) -> None:
    engine = resolve("")
    with running_gateway(Settings(triton_address=triton.address, engine_dir=engine.path)) as url:
        described = ollama.Client(url, trust_env=False).show(MODEL)
        (listed,) = ollama.Client(url, trust_env=False).list().models
    info: Any = described.modelinfo
    assert info["general.architecture"] == "llama"
    assert info["llama.embedding_length"] == engine.spec.hidden_size
    details = (listed.details.family, listed.details.quantization_level, listed.details.parameter_size)
    assert details == ("llama", "BF16", "134.48M")
    assert listed.size is not None
    assert listed.size > 2 * info["general.parameter_count"] > 2e8  # two bytes each, and a header


def test_clients_of_other_servers_find_the_model_and_its_context(http: httpx.Client) -> None:
    (older,) = http.get("/api/v0/models").json()["data"]
    assert (older["id"], older["type"], older["max_context_length"]) == (MODEL, "vlm", CONTEXT_LEN)
    (newer,) = http.get("/api/v1/models").json()["models"]
    (instance,) = newer["loaded_instances"]
    assert (newer["key"], instance["config"]["context_length"]) == (MODEL, CONTEXT_LEN)
    properties = http.get("/props").json()
    assert properties["default_generation_settings"]["n_ctx"] == CONTEXT_LEN
    assert properties["modalities"] == {"vision": True, "audio": False}
    assert http.get("/slots").json() == [{"id": 0, "n_ctx": CONTEXT_LEN, "is_processing": False}]


def test_clients_of_lm_studio_see_which_model_sleeps(http: httpx.Client, triton: FakeTriton) -> None:
    for state, older, instances in (("awake", "loaded", 1), ("asleep", "not-loaded", 0)):
        triton.memory["turbomind"] = AWAKE | {"state": state}
        assert http.get("/api/v0/models").json()["data"][0]["state"] == older
        assert len(http.get("/api/v1/models").json()["models"][0]["loaded_instances"]) == instances


def test_codex_preloads_a_model_of_lm_studio_with_an_empty_input(http: httpx.Client) -> None:
    body = {"model": MODEL, "input": "", "max_output_tokens": 1}
    assert http.post("/v1/responses", json=body).status_code == 200


def test_a_request_without_a_prompt_loads_or_with_keep_alive_0_unloads(
    client: ollama.Client, triton: FakeTriton
) -> None:
    loaded = client.generate(MODEL)  # whose engine does not sleep
    assert (loaded.response, loaded.done, loaded.done_reason) == ("", True, "load")
    with pytest.raises(ollama.ResponseError, match="sleep_control"):
        client.generate(MODEL, keep_alive=0)
    triton.memory["turbomind"] = dict(AWAKE)
    response = client.chat(MODEL, [], stream=False, keep_alive="5m")
    assert (response.message.role, response.message.content, response.done_reason) == ("assistant", "", "load")
    for keep_alive in (0, "0", "0s", "-0m"):
        assert client.generate(MODEL, keep_alive=keep_alive).done_reason == "unload"
    with pytest.raises(ollama.ResponseError, match="does not exist"):
        client.generate("nobody")
    assert triton.requests == []
    woken, *slept = triton.sleep_controls
    assert (woken["sleep_control"], woken["keep_alive"]) == ("wake", 300)
    assert [(control["sleep_control"], control["sleep_level"]) for control in slept] == [("sleep", 2)] * 4


@pytest.mark.parametrize(
    ("keep_alive", "seconds"), [(0, 0), (-1, -1), ("-1m", -60), ("1h30m", 5400), (30.5, 30.5), (None, None), ("", None)]
)
def test_keep_alive_reaches_the_engine(
    client: ollama.Client, triton: FakeTriton, keep_alive: float | str | None, seconds: float | None
) -> None:
    client.chat(MODEL, HELLO, keep_alive=keep_alive)
    client.generate(MODEL, "Hello", keep_alive=keep_alive, stream=False)
    assert [request.inputs.get("keep_alive") for request in triton.requests] == [seconds] * 2


def test_keep_alive_reaches_an_embedder(triton: FakeTriton, tmp_path: Path) -> None:
    write_pooling(write_modules(tmp_path), tmp_path)
    with running_gateway(Settings(triton_address=triton.address, engine_dir=tmp_path)) as url:
        client = ollama.Client(url, trust_env=False)
        client.embed(MODEL, ["one", "two"], keep_alive="2m")
        client.embeddings(MODEL, "one", keep_alive=0)
    assert [request.inputs["keep_alive"] for request in triton.requests] == [120, 120, 0]


@pytest.mark.parametrize("keep_alive", ["5 minutes", "1d", "soon", "m"])
def test_odd_durations_are_refused_by_name(client: ollama.Client, triton: FakeTriton, keep_alive: str) -> None:
    for request in (client.generate, client.embed):
        with pytest.raises(ollama.ResponseError, match=r"^keep_alive must be seconds or a duration such as") as failure:
            request(MODEL, "Hello", keep_alive=keep_alive)
        assert failure.value.status_code == 400
    assert triton.requests == []


def test_the_time_of_loading_is_reported(client: ollama.Client, triton: FakeTriton) -> None:
    triton.script = Script(load_seconds=2.5)
    assert client.chat(MODEL, HELLO).load_duration == 2_500_000_000
    assert list(client.generate(MODEL, "Hello", stream=True))[-1].load_duration == 2_500_000_000


def test_models_in_memory_are_listed_with_how_much_they_have_and_until_when(
    client: ollama.Client, triton: FakeTriton
) -> None:
    triton.memory["turbomind"] = dict(AWAKE)
    (entry,) = client.ps().models
    assert (entry.model, entry.size) == (MODEL, AWAKE["bytes"])
    assert entry.expires_at is not None
    left = (entry.expires_at - datetime.now(UTC)).total_seconds()
    assert AWAKE["sleeps_in"] - 60 < left <= AWAKE["sleeps_in"]
    triton.memory["turbomind"]["sleeps_in"] = None
    assert client.ps().models[0].expires_at.year == 9999  # type: ignore[union-attr]
    triton.memory["turbomind"]["state"] = "asleep"
    assert client.ps().models == []
    assert [model.model for model in client.list().models] == [MODEL]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("kind", ["chat", "generate"])
def test_log_probabilities_come_with_their_tokens(
    client: ollama.Client, triton: FakeTriton, kind: str, is_streamed: bool
) -> None:
    fields: Any = {"stream": is_streamed, "logprobs": True, "top_logprobs": 2}
    response: Any = client.chat(MODEL, HELLO, **fields) if kind == "chat" else client.generate(MODEL, "Hello", **fields)
    pieces = list(response) if is_streamed else [response]
    entries = [entry for piece in pieces for entry in piece.logprobs or ()]
    # the fake engine's tokens: two a response, with these log probabilities
    assert [entry.logprob for entry in entries] == [-0.5, -0.25] * (3 if is_streamed else 1)
    assert [len(entry.top_logprobs) for entry in entries] == [2] * len(entries)
    assert entries[0].token == "<pad>"
    generated: Any = client.generate(MODEL, "Hello")
    assert generated.logprobs is None


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"temperature": 7.0}, {"temperature": 2.0}),
        ({"temperature": -1}, {"temperature": 0.0}),
        ({"top_p": 1.5}, {"top_p": 1.0}),
        ({"top_p": 0}, {"top_k": 1}),
        ({"min_p": 9}, {"min_p": 1.0}),
        ({"typical_p": 9}, {"typical_p": "1.0"}),
        ({"top_k": -5}, {"top_k": 0}),
        ({"top_k": 7.0}, {"top_k": 7}),
        ({"repeat_penalty": 0}, {"repetition_penalty": 1.0}),
        ({"presence_penalty": -9}, {"presence_penalty": -2.0}),
        ({"seed": 5.0}, {"random_seed": 5}),
        ({"seed": -1}, {"random_seed": None}),
        ({"num_predict": 0}, {"max_new_tokens": -1}),
        ({"num_predict": 9.0}, {"max_new_tokens": 9}),
        ({"num_predict": CONTEXT_LEN + 1}, {"max_new_tokens": -1}),
        ({"stop": ["", "x"]}, {"stop_words": ["x"]}),
        ({"stop": None, "temperature": None, "wings": 2}, {"temperature": pytest.approx(0.7)}),
    ],
    ids=str,
)
def test_options_out_of_range_are_brought_into_it(
    client: ollama.Client, triton: FakeTriton, options: dict[str, Any], sent: dict[str, Any]
) -> None:
    client.chat(MODEL, HELLO, options=options)
    inputs = triton.requests[0].inputs
    assert {name: inputs.get(name) for name in sent} == sent


@pytest.mark.parametrize("options", [{"temperature": "hot"}, {"num_predict": True}, {"stop": [5]}, {"top_k": [1]}])
def test_options_of_another_type_are_refused_by_name(client: ollama.Client, options: dict[str, Any]) -> None:
    with pytest.raises(ollama.ResponseError, match=f"options.{next(iter(options))} must be"):
        client.chat(MODEL, HELLO, options=options)


@pytest.mark.parametrize("truncate", [None, True, False])
def test_texts_that_are_too_long_lose_their_end_unless_that_is_refused(
    embedder: str, monkeypatch: pytest.MonkeyPatch, truncate: bool | None
) -> None:
    requested: list[int] = []
    monkeypatch.setattr(
        "tests.support.fake_triton.embedding_of", lambda ids: requested.append(len(ids)) or bytes([0, 0, 128, 63] * 4)
    )
    ollama.Client(embedder, trust_env=False).embed(MODEL, ["one", "x" * (2 * CONTEXT_LEN)], truncate=truncate)
    assert max(requested) == (1 + 2 * CONTEXT_LEN if truncate is False else CONTEXT_LEN)


def test_texts_become_vectors(embedder: str) -> None:
    response = ollama.Client(embedder, trust_env=False).embed(MODEL, ["one", "another text"])
    np.testing.assert_allclose(response.embeddings, [expected("one"), expected("another text")], rtol=1e-6)
    assert response.prompt_eval_count == 14
    assert response.total_duration is not None
    assert ollama.Client(embedder, trust_env=False).embed(MODEL, "").embeddings == []
    older = ollama.Client(embedder, trust_env=False).embeddings(MODEL, "one")
    np.testing.assert_allclose(older.embedding, expected("one"), rtol=1e-6)
    assert ollama.Client(embedder, trust_env=False).embeddings(MODEL, "").embedding == []


def test_errors_have_that_apis_form(client: ollama.Client, triton: FakeTriton, url: str) -> None:
    with pytest.raises(ollama.ResponseError, match="The model `nobody` does not exist") as failure:
        client.chat("nobody", HELLO)
    assert failure.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="top_logprobs"):
        client.chat(MODEL, HELLO, logprobs=True, top_logprobs=21)
    assert isinstance(httpx.post(f"{url}/api/chat", json={"messages": []}, trust_env=False).json()["error"], str)
    triton.script = Script(fail_after=1)
    with pytest.raises(ollama.ResponseError):
        list(client.chat(MODEL, HELLO, stream=True))


def test_a_key_is_needed_where_keys_are(triton: FakeTriton) -> None:
    with running_gateway(Settings(triton_address=triton.address, api_keys=("k",))) as url:
        with pytest.raises(ollama.ResponseError) as failure:
            ollama.Client(url, trust_env=False).list()
        assert failure.value.status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert ollama.Client(url, headers=headers, trust_env=False).chat(MODEL, HELLO).message.content == REPLY
