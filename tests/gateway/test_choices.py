"""Several choices, log probabilities, and the options of the full specification."""

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import orjson
import pytest

from lmdeploy.serve.client import GenerateChunk
from lmdeploy.token_bytes import TokenBytes
from openai_gateway.generation.logprobs import Scored, TextCursor, completion_logprobs, encoded_chat_logprobs
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FIRST_BYTE, FakeTriton, Script, prompt_logprob
from tests.support.gateways import running_gateway

HELLO: Any = [{"role": "user", "content": "Hello"}]
TWO = Script(choices=[["a", "b"], ["1", "2", "3"]])

REPLY = "The capital of France is Paris."


def test_n_choices_are_separate_and_the_prompt_is_counted_once(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = TWO
    response = client.chat.completions.create(model=MODEL, messages=HELLO, n=2)
    assert [(choice.index, choice.message.content) for choice in response.choices] == [(0, "ab"), (1, "123")]
    assert triton.requests[0].inputs["n"] == 2
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (7, 4)


def test_streamed_choices_interleave_and_add_up(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = TWO
    texts: defaultdict[int, str] = defaultdict(str)
    roles, reasons = [], []
    for chunk in client.chat.completions.create(model=MODEL, messages=HELLO, n=2, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        roles += [choice.index] if choice.delta.role else []
        reasons += [choice.index] if choice.finish_reason else []
    assert texts == {0: "ab", 1: "123"}
    assert (sorted(roles), sorted(reasons)) == ([0, 1], [0, 1])


def test_n_choices_of_several_prompts_are_numbered_prompt_by_prompt(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = lambda received: Script(choices=[[received.inputs["text_input"] + str(i)] for i in range(2)])
    response = client.completions.create(model=MODEL, prompt=["a", "b"], n=2)
    assert [(choice.index, choice.text) for choice in response.choices] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    *chunks, last = client.completions.create(
        model=MODEL, prompt=["a", "b"], n=2, stream=True, stream_options={"include_usage": True}
    )
    texts: defaultdict[int, str] = defaultdict(str)
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "a0", 1: "a1", 2: "b0", 3: "b1"}
    for usage in (response.usage, last.usage):
        assert (usage.prompt_tokens, usage.completion_tokens) == (14, 8)


def test_chat_logprobs_have_text_and_bytes_of_every_token(client: openai.OpenAI) -> None:
    response = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2)
    logprobs = response.choices[0].logprobs
    second = logprobs.content[1]
    assert (second.token, second.bytes, second.logprob) == ("a", [97], -0.25)  # token 100 is byte 97
    assert [(top.token, top.logprob) for top in second.top_logprobs] == [("a", -0.25), ("\x07", -1.5)]


def test_streamed_logprobs_are_those_of_the_whole_response(client: openai.OpenAI) -> None:
    content: list[Any] = []
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, top_logprobs=1, stream=True)
    text = ""
    for chunk in stream:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        content += (choice.logprobs.content or []) if choice.logprobs else []
    assert text == "The capital of France is Paris."
    assert [token.logprob for token in content] == [-0.5, -0.25] * 3
    assert [token.bytes[0] for token in content[1::2]] == [97, 98, 99]


def test_token_texts_are_asked_for_where_there_is_no_table(asking_client: openai.OpenAI) -> None:
    response = asking_client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True)
    assert [token.token for token in response.choices[0].logprobs.content or []] == ["<pad>", "a"]
    echoed = asking_client.completions.create(model=MODEL, prompt="é🦜b", max_tokens=1, echo=True, logprobs=0)
    logprobs = echoed.choices[0].logprobs
    halves = [f"bytes:\\x{byte:02x}" for byte in "é🦜".encode()]
    assert (logprobs.tokens or [])[:8] == ["<s>", *halves, "b"]
    assert (logprobs.text_offset or [])[:8] == [0, 0, 0, 1, 1, 1, 1, 2]  # <s> is left out of the text


def test_penalties_bias_and_formats_reach_the_engine(client: openai.OpenAI, triton: FakeTriton) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": -100},
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
        extra_body={"min_p": 0.25, "bad_words": ["x"], "stop_token_ids": [5]},
    )
    inputs = triton.requests[0].inputs
    assert (inputs["presence_penalty"], inputs["frequency_penalty"], inputs["min_p"]) == (0.5, -0.5, 0.25)
    assert (inputs["logit_bias_ids"], inputs["logit_bias_values"]) == ([7], [-100])
    assert (inputs["bad_words"], inputs["stop_token_ids"]) == (["x"], [5])
    sent = json.loads(inputs["response_format"])
    assert sent == {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}


REGEX_FORM = {"type": "regex_schema", "regex_schema": "a+"}


GRAMMAR_FORM = {"type": "grammar", "grammar": 'root ::= "a"'}
FREE_FORM = {"type": "json_schema", "json_schema": {"name": "any", "schema": {}, "property_order": "any"}}


RESPONSE_FORMATS: list[tuple[Any, Any]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, {"type": "json_object"}),
    (REGEX_FORM, REGEX_FORM),
    ({"type": "json_schema", "json_schema": {"name": "any", "strict": None}}, {"type": "json_object"}),
    (FREE_FORM, FREE_FORM),
]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
SCHEMA_FORM = {"type": "json_schema", "json_schema": {"name": "json", "schema": SCHEMA}}
CHOICE_FORM = {"type": "grammar", "grammar": 'root ::= "say \\"yes\\"" | "nü"'}


@pytest.mark.parametrize(
    ("requested", "sent"),
    [
        ({"guided_json": SCHEMA}, SCHEMA_FORM),
        ({"guided_json": json.dumps(SCHEMA)}, SCHEMA_FORM),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA_FORM),
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, REGEX_FORM),
        ({"structured_outputs": {"regex": "a+"}}, REGEX_FORM),
        ({"guided_choice": ['say "yes"', "nü"]}, CHOICE_FORM),
        ({"structured_outputs": {"choice": ['say "yes"', "nü"]}}, CHOICE_FORM),
        ({"guided_grammar": 'root ::= "a"'}, GRAMMAR_FORM),
        ({"guided_grammar": 'start: "a"'}, {"type": "lark", "lark": 'start: "a"'}),
        *(({"response_format": form}, sent) for form, sent in RESPONSE_FORMATS),
        ({"guided_grammar": 'root ::= "a"', "structured_outputs": {"grammar": 'root ::= "a"'}}, GRAMMAR_FORM),
        ({"guided_grammar": 'start: "a ::= b"'}, {"type": "lark", "lark": 'start: "a ::= b"'}),
        ({"guided_json": SCHEMA, "structured_outputs": {"json": SCHEMA}}, SCHEMA_FORM),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}, {"type": "json_object"}),
        (
            {"structured_outputs": {"regex": "a+", "structural_tag": None, "disable_additional_properties": False}},
            REGEX_FORM,
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},  # llama.cpp's
            {"type": "json_schema", "json_schema": SCHEMA_FORM["json_schema"] | {"name": "response"}},
        ),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_format_has_its_engine_form_in_the_words_of_vllms_clients_too(
    http: httpx.Client, triton: FakeTriton, path: str, requested: Any, sent: Any
) -> None:
    prompt = {"prompt": "a"} if path == "/v1/completions" else {"messages": HELLO}
    assert http.post(path, json={"model": MODEL, **prompt, **requested}).status_code == 200
    got = triton.requests[0].inputs.get("response_format")
    assert (json.loads(got) if got else None) == sent


DEEP = json.loads('{"not":' * 200 + "{}" + "}" * 200)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"guided_regex": "a", "guided_choice": ["a"]}, "structured_outputs"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "grammar": "x"}}, "structured_outputs"),
        ({"guided_json": "no JSON"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": "[" * 60_000}, "guided_json"),
        ({"guided_json": json.dumps(DEEP)}, "guided_json"),
        ({"guided_json": json.dumps({"enum": ["x" * 10_000] * 7})}, "guided_json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "deep", "schema": DEEP}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "regex_schema", "regex_schema": "a", "flags": "i"}}, "response_format.flags"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "scheme": {}}}},
            "response_format.json_schema.scheme",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "is_enforced": True}}},
            "response_format.json_schema.is_enforced",
        ),
    ],
)
def test_more_than_one_format_and_what_is_none_or_unknown_are_refused(
    http: httpx.Client, wrong: Any, param: str
) -> None:
    response = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, **wrong})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_echo_begins_with_the_prompt(client: openai.OpenAI) -> None:
    assert (
        client.completions.create(model=MODEL, prompt="Once", echo=True).choices[0].text.startswith("OnceThe capital")
    )
    chunks = client.completions.create(model=MODEL, prompt="Once", echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks).startswith("OnceThe capital")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_echo_with_logprobs_reports_the_prompt_s_too(
    client: openai.OpenAI, triton: FakeTriton, stream: bool, n: int
) -> None:
    options: Any = {"model": MODEL, "prompt": ["ab", "c"], "echo": True, "logprobs": 1, "n": n}
    texts = [""] * (2 * n)
    reports: list[dict[str, list[Any]]] = [{} for _ in texts]
    responses = client.completions.create(**options, stream=stream)
    for response in responses if stream else [responses]:
        for choice in response.choices:
            texts[choice.index] += choice.text
            for name, values in (choice.logprobs.model_dump() if choice.logprobs else {}).items():
                reports[choice.index].setdefault(name, []).extend(values)
    assert triton.requests[0].inputs["prompt_logprobs"] == 1
    for number, prompt in enumerate(["ab", "c"] if n == 1 else ["ab", "ab", "c", "c"]):
        assert texts[number] == prompt + REPLY
        logprobs = reports[number]
        assert logprobs["tokens"][: 1 + len(prompt)] == ["<s>", *prompt]
        assert logprobs["token_logprobs"][: 1 + len(prompt)] == [
            None,
            *(prompt_logprob(position + 1) for position in range(len(prompt))),
        ]
        assert logprobs["top_logprobs"][0] is None
        assert set(logprobs["top_logprobs"][1]) == {prompt[0], "?"}
        assert logprobs["token_logprobs"][1 + len(prompt) :][:2] == [-0.5, -0.25]  # of the response
        assert len({len(values) for values in logprobs.values()}) == 1
        assert logprobs["text_offset"][: 2 + len(prompt)] == [0, *range(1 + len(prompt))]


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_prompt_can_be_scored_without_a_response(
    client: openai.OpenAI, triton: FakeTriton, logprobs: int | None
) -> None:
    triton.script = Script(texts=[""], finish_reason="length")
    options: Any = {"logprobs": logprobs} if logprobs else {}
    choice = client.completions.create(model=MODEL, prompt=[4, 5], echo=True, max_tokens=0, **options).choices[0]
    inputs = triton.requests[0].inputs
    assert (inputs["max_new_tokens"], inputs["prompt_logprobs"]) == (0, logprobs or 0)
    assert (choice.text, choice.finish_reason) == ("\x01\x02", "length")
    assert (choice.logprobs is None) == (logprobs is None)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a", echo=True, max_tokens=0, n=2)
    assert caught.value.param == "n"


@pytest.mark.parametrize("echo", [False, True])
def test_prompt_logprobs_are_reported_as_vllm_reports_them(
    client: openai.OpenAI, triton: FakeTriton, echo: bool
) -> None:
    options: Any = {"model": MODEL, "n": 2, "logprobs": 0, "echo": echo, "extra_body": {"prompt_logprobs": 1}}
    response = client.completions.create(prompt=["ab", "c"], **options)
    assert [request.inputs["prompt_logprobs"] for request in triton.requests] == [1, 1]
    for choice, prompt in zip(response.choices, ["ab", "ab", "c", "c"], strict=True):
        assert choice.text == (prompt if echo else "") + REPLY
        first, *others = choice.prompt_logprobs
        assert first is None
        for position, (entry, letter) in enumerate(zip(others, prompt, strict=True), 1):
            here = {"logprob": prompt_logprob(position), "rank": None, "decoded_token": letter}
            assert entry == {
                str(FIRST_BYTE + ord(letter)): here,
                str(FIRST_BYTE + ord("?")): here | {"rank": 1, "decoded_token": "?"},
            }
        assert (choice.logprobs.token_logprobs or [])[:2] == ([None, prompt_logprob(1)] if echo else [-0.5, -0.25])
        assert [*map(len, filter(None, choice.logprobs.top_logprobs or []))] == [1] * (2 + (len(prompt) if echo else 0))


def test_prompt_logprobs_of_a_chat_stand_alongside_its_choices(client: openai.OpenAI, triton: FakeTriton) -> None:
    options: Any = {"model": MODEL, "messages": HELLO, "n": 2}
    assert client.chat.completions.create(**options).prompt_logprobs is None
    response = client.chat.completions.create(**options, extra_body={"prompt_logprobs": 0})
    assert triton.requests[1].inputs["prompt_logprobs"] == 0
    assert response.prompt_logprobs == [None]  # the fake has one token for every chat
    for fields in ({"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"prompt_logprobs": 0, "stream": True}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**options, extra_body=fields)
        assert caught.value.param == "prompt_logprobs"


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_responses_are_reported_and_taken_where_that_is_asked_for(
    client: openai.OpenAI, triton: FakeTriton, stream: bool
) -> None:
    triton.script = TWO
    options: Any = {"model": MODEL, "messages": HELLO, "n": 2, "stream": stream}
    given: dict[int, Any] = {}
    responses = client.chat.completions.create(**options, extra_body={"return_token_ids": True})
    for response in responses if stream else [responses]:
        given |= {choice.index: choice.token_ids for choice in response.choices if choice.finish_reason}
    first = [0, 100, 1, 101]
    completed: dict[int, Any] = {}
    body: Any = {"model": MODEL, "prompt": "a", "n": 2, "stream": stream, "extra_body": {"return_token_ids": True}}
    completions = client.completions.create(**body)
    for response in completions if stream else [completions]:
        completed |= {choice.index: choice.token_ids for choice in response.choices if choice.finish_reason}
    assert completed == given
    assert given == ({0: first, 1: [*first, 2, 102]} if stream else {0: first[:2], 1: first[:2]})
    triton.script = Script()
    message = {"role": "assistant", "content": "ab", "token_ids": given[0]}
    client.chat.completions.create(model=MODEL, messages=[*HELLO, message, *HELLO])
    assert json.loads(triton.requests[-1].inputs["messages"])[1] == message
    for role, ids, name in (("user", [1], "messages[0].token_ids"), ("assistant", [-1], "messages[0].token_ids[0]")):
        wrong: Any = [{"role": role, "content": "a", "token_ids": ids}]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=wrong)
        assert caught.value.param == name


def test_a_prompt_of_tokens_is_continued(client: openai.OpenAI, triton: FakeTriton) -> None:
    response = client.completions.create(model=MODEL, prompt=[[100, 101], [102]], echo=True)
    assert [request.inputs["input_ids"] for request in triton.requests] in ([[100, 101], [102]], [[102], [100, 101]])
    assert [choice.text[:2] for choice in response.choices] == ["ab", "cT"]


def test_what_a_tool_returns_may_be_an_object(http: httpx.Client, triton: FakeTriton) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call], "function_call": None},
        {"role": "tool", "content": {"celsius": 26.1}, "tool_call_id": "c1", "name": "f"},
        {"role": "ipython", "content": "26"},
        {"role": "environment", "content": "27", "name": "plugin"},
    ]
    assert http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages}).status_code == 200
    sent = json.loads(triton.requests[0].inputs["messages"])
    assert sent[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": '{"celsius": 26.1}', "name": "f", "tool_call_id": "c1"},
        {"role": "tool", "content": "26"},
        {"role": "environment", "content": "27", "name": "plugin"},
    ]


@pytest.mark.parametrize(
    ("path", "body", "max_choices"),
    [
        ("chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 3, "n": 2}, 1000 // 8),
        ("completions", {"prompt": ["a", "b"], "logprobs": 4}, 1000 // 10),
        ("responses", {"input": "a", "top_logprobs": 1, "include": ["message.output_text.logprobs"]}, 1000 // 2),
    ],
)
def test_log_probabilities_of_a_collected_response_are_bounded(
    triton: FakeTriton, path: str, body: dict[str, Any], max_choices: int
) -> None:
    limit = "max_output_tokens" if path == "responses" else "max_tokens"
    settings = Settings(triton_address=triton.address, max_logprobs=1000)
    with running_gateway(settings) as url, httpx.Client(base_url=f"{url}/v1/", trust_env=False) as http:
        assert http.post(path, json={"model": MODEL, **body, limit: max_choices}).status_code == 200
        rejected = http.post(path, json={"model": MODEL, **body, limit: max_choices + 1})
        assert rejected.status_code == 400
        assert "must be at most 1000" in rejected.json()["error"]["message"]
        assert http.post(path, json={"model": MODEL, **body}).status_code == 200
        default_limit = 16 if path == "completions" else max_choices
        assert triton.requests[-1].inputs["max_new_tokens"] == default_limit
        if path != "responses":  # whose last event has all of them
            assert (
                http.post(path, json={"model": MODEL, **body, limit: max_choices + 1, "stream": True}).status_code
                == 200
            )


async def test_others_have_a_turn_while_log_probabilities_are_written() -> None:
    tokens, turns = 10_000, 0
    chunk = GenerateChunk(token_ids=(97,) * tokens, token_logprobs=(-1.0,) * tokens)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Texts:
        async def lookup(self, ids: set[int]) -> dict[int, bytes]:
            return {token: bytes([token]) for token in ids}

    running = asyncio.create_task(other())
    written = await encoded_chat_logprobs([chunk], cast(TokenTexts, Texts()))
    running.cancel()
    content = json.loads(orjson.dumps(written))["content"]
    assert content == [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}] * tokens
    assert turns > 50


SPLIT_PARROT = [*"🦜".encode()]  # in the fake tokenizer a token a byte


@pytest.mark.parametrize("requested", [0, 3])
async def test_completion_logprobs_have_an_entry_for_each_token(tmp_path: Path, requested: int) -> None:
    """In the table, two more tokens have the text `a`; one of them is special."""
    TokenBytes((*(bytes([byte]) for byte in range(256)), b"a", b"a"), (False,) * 257 + (True,)).write(
        tmp_path / "token_bytes.bin"
    )
    texts, cursor = TokenTexts(cast(Any, None), tmp_path), TextCursor()
    most_likely = [(97, -0.5), (0xF0, -1.0), (256, -2.0)]
    scored = [Scored(token, -3.0, most_likely) for token in (97, 257, 256, *SPLIT_PARROT, 98)]
    pieces = [await completion_logprobs([one], texts, requested, cursor) for one in scored]
    report = await completion_logprobs(scored, texts, requested, TextCursor())
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert getattr(report, field) == [value for piece in pieces for value in getattr(piece, field)]
    assert report.tokens == ["a", "a", "a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\xa6", "bytes:\\x9c", "b"]
    assert report.text_offset == [0, 1, 1, 2, 2, 2, 2, 3]  # in aa🦜b
    for token, text, top in zip(scored, report.tokens, report.top_logprobs, strict=True):
        assert top[text] == -3.0
        assert len(top) == len({token.token, *(other for other, _ in most_likely[:requested])})
    if requested:
        assert report.top_logprobs[0] == {"a": -3.0, "bytes:\\xf0": -1.0, "token_id:256": -2.0}
