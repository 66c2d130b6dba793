"""Random responses in every tool-call format, through every API: no call is lost, and whole = streamed."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx
import pytest

from lmdeploy.serve.client import GenerateChunk, GenerateRequest, TritonClient
from lmdeploy.templates.thinking import GEMMA4, MAGISTRAL, SEED_OSS, THINK, NamedThinking, Thinking
from lmdeploy.templates.tool_call_formats import MarkedObjects
from openai_gateway.app import create_app
from openai_gateway.models import OneModel
from openai_gateway.settings import Settings
from tests.gateway.responses.test_tool_call_formats import FORMATS, UNTAGGED, calls_of

SEEDS, SAMPLE = 10_000, 400
WORDS = ("Well.", "1 < 2", "so I", "北京 🦜", "it's", "{maybe}", "a | b", '"quoted"')
WITHOUT_TAGS = UNTAGGED | {"command-r"}  # whose marks prose may have


@dataclass
class Response:
    """A response, as its client reads it."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    reason: str = ""

    def stripped(self) -> "Response":
        """Blanks around calls belong to nothing."""
        return Response("".join(self.reasoning.split()), "".join(self.content.split()), self.calls, self.reason)


class ScriptedClient(TritonClient):
    """Answers each request with the script, in pieces where it is streamed."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.pieces: list[str] = []
        self.finish_reason = "stop"

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        pieces = self.pieces if request.stream else ["".join(self.pieces)]
        for number, text in enumerate(pieces, 1):
            yield GenerateChunk(text, input_token_len=3, generate_token_len=number)
        yield GenerateChunk(
            finish_reason=self.finish_reason,
            input_token_len=3,
            generate_token_len=len(pieces),
            engine_seconds=(0.1, 0.1, 0.1),
        )

    async def context_len(self) -> int:
        return 4096


class Scripted:
    """The gateway in this process, whose model says what it is told to."""

    def __init__(self, **settings: Any) -> None:
        self._client = ScriptedClient()
        app = create_app(Settings(model_name="m", **settings), self._client)
        models = app.state.gateway.models
        assert isinstance(models, OneModel)
        self._model = models._model
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")

    def says(self, pieces: list[str], parser: str, thinking: Thinking | None, finish_reason: str = "stop") -> None:
        self._client.pieces, self._client.finish_reason = pieces, finish_reason
        self._model.tool_call_parser, self._model.thinking = parser, thinking

    async def request(self, api: str, schemas: dict[str, Any], *, streams: bool, **fields: Any) -> Response:
        messages = [{"role": "user", "content": "?"}]
        functions = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
        tools: list[Any] = [{"type": "function", "function": function} for function in functions]
        body: dict[str, Any] = {"model": "m", "stream": streams, "messages": messages, "tools": tools}
        path = {"chat": "/v1/chat/completions", "ollama": "/api/chat"}.get(api, f"/v1/{api}")
        if api == "responses":
            body |= {"input": body.pop("messages"), "store": False}
            body["tools"] = [{"type": "function", **function} for function in functions]
        elif api == "messages":
            body["tools"] = [
                {"name": function["name"], "input_schema": function["parameters"]} for function in functions
            ]
            body |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
        answered = await self.http.post(path, json=body | fields)
        assert answered.status_code == 200, answered.text
        whole, stream = READERS[api]
        if not streams:
            return whole(answered.json())
        lines = answered.text.replace("data: ", "").split("\n")
        return stream([json.loads(line) for line in lines if line.startswith("{")])


def chat(body: dict[str, Any]) -> Response:
    choice = body["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"] or ()]
    return Response(message["reasoning_content"] or "", message["content"] or "", calls, choice["finish_reason"])


def chat_stream(events: list[dict[str, Any]]) -> Response:
    read = Response()
    for event in events:
        choice = event["choices"][0]
        delta = choice["delta"]
        read.reasoning += delta.get("reasoning_content") or ""
        read.content += delta.get("content") or ""
        read.reason = choice["finish_reason"] or read.reason
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                assert call["index"] == len(read.calls)
                read.calls.append((function["name"], ""))
            name, arguments = read.calls[call["index"]]
            read.calls[call["index"]] = (name, arguments + function["arguments"])
    return read


def responses(body: dict[str, Any]) -> Response:
    read = Response(reason=(body["incomplete_details"] or {}).get("reason", "stop"))
    for item in body["output"]:
        if item["type"] == "function_call":
            read.calls.append((item["name"], item["arguments"]))
        elif item["type"] == "reasoning":
            read.reasoning += item["content"][0]["text"]
        else:
            read.content += item["content"][0]["text"]
    return read


def responses_stream(events: list[dict[str, Any]]) -> Response:
    read = Response()
    for event in events:
        match event["type"]:
            case "response.reasoning_text.delta":
                read.reasoning += event["delta"]
            case "response.output_text.delta":
                read.content += event["delta"]
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                read.calls.append((event["item"]["name"], ""))
            case "response.function_call_arguments.delta":
                read.calls[-1] = (read.calls[-1][0], read.calls[-1][1] + event["delta"])
            case "response.completed" | "response.incomplete":
                assert responses(event["response"]) == Response(
                    read.reasoning, read.content, read.calls, responses(event["response"]).reason
                )
                read.reason = responses(event["response"]).reason
    return read


def messages_of(body: dict[str, Any]) -> Response:
    read = Response(reason=body["stop_reason"])
    for block in body["content"]:
        if block["type"] == "tool_use":
            read.calls.append((block["name"], block["input"]))
        read.reasoning += block.get("thinking", "")
        read.content += block.get("text", "")
    return read


def messages_stream(events: list[dict[str, Any]]) -> Response:
    read = Response()
    for event in events:
        match event["type"]:
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                read.calls.append((event["content_block"]["name"], ""))
            case "content_block_delta":
                delta = event["delta"]
                read.reasoning += delta.get("thinking", "")
                read.content += delta.get("text", "")
                if "partial_json" in delta:
                    read.calls[-1] = (read.calls[-1][0], read.calls[-1][1] + delta["partial_json"])
            case "message_delta":
                read.reason = event["delta"]["stop_reason"]
    read.calls = [(name, whole_or_nothing(arguments)) for name, arguments in read.calls]
    return read


def ollama(body: dict[str, Any]) -> Response:
    message = body["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return Response(message.get("thinking", ""), message["content"], calls, body["done_reason"])


def ollama_stream(events: list[dict[str, Any]]) -> Response:
    read = Response()
    for event in events:
        event_read = ollama(event | {"done_reason": event.get("done_reason", "")})
        read.reasoning += event_read.reasoning
        read.content += event_read.content
        read.calls += event_read.calls
        read.reason = event_read.reason
    return read


READERS: dict[str, tuple[Callable[[Any], Response], Callable[[Any], Response]]] = {
    "chat": (chat, chat_stream),
    "responses": (responses, responses_stream),
    "messages": (messages_of, messages_stream),
    "ollama": (ollama, ollama_stream),
}


def whole_or_nothing(arguments: str) -> Any:
    """Return the arguments of a call as a message has them, in which those of a call that was cut are left out."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def text_of(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, 5)))


def scripted(seed: int, name: str) -> tuple[str, Response, dict[str, Any], Thinking | None]:
    """Return a model's text, the response that it stands for, the functions and the reasoning format."""
    rng = random.Random(seed)
    form = FORMATS[name]
    has_tags = name not in WITHOUT_TAGS
    calls, schemas = calls_of(rng, name, has_unknown=has_tags and rng.random() < 0.2)
    written = form.write(calls)
    if isinstance(form, MarkedObjects) and rng.random() < 0.1:
        calls.append({"function": {"name": "tick", "arguments": {}}})
        schemas["tick"] = {"type": "object"}
        written += f'{form.opening}{{"name": "tick"}}{form.closing}'
    read = Response(calls=[(call["function"]["name"], call["function"]["arguments"]) for call in calls])
    style = rng.choice(("none", "absent", "closed", "drafted", "open") if has_tags else ("none", "absent", "closed"))
    before = text_of(rng) if name not in UNTAGGED and rng.random() < 0.5 else ""
    after = text_of(rng) if has_tags and style != "open" and rng.random() < 0.3 else ""
    if style == "none":
        return before + written + after, Response("", before + after, read.calls), schemas, None
    tags = rng.choice((THINK, SEED_OSS, MAGISTRAL, GEMMA4))
    begins = rng.random() < 0.5
    thinking = Thinking(tags, NamedThinking(tags, begins=begins and style != "absent"))
    if style == "absent":
        return before + written + after, Response("", before + after, read.calls), schemas, thinking
    thought = text_of(rng)
    if style == "drafted":
        thought += form.write(calls_of(rng, name, has_unknown=False)[0]) + text_of(rng)
    opening = "" if begins else tags.begin
    if style == "open":
        return f"{opening}{thought}{written}", Response(thought, "", read.calls), schemas, thinking
    made = f"{opening}{thought}{tags.end}\n\n{before}{written}{after}"
    return made, Response(thought, before + after, read.calls), schemas, thinking


def pieces_of(rng: random.Random, text: str) -> list[str]:
    pieces = []
    while text:
        size = rng.randrange(1, 8)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def parsed(response: Response) -> Response:
    calls = [
        (name, json.loads(arguments) if isinstance(arguments, str) else arguments) for name, arguments in response.calls
    ]
    return Response(response.reasoning, response.content, calls, response.reason)


def cases(api: str, *, all_cases: bool) -> Iterator[tuple[int, str]]:
    """Yield seeds and formats."""
    names, count = list(FORMATS), (SEEDS if all_cases else SAMPLE) // len(READERS)
    for number in range(count):
        yield number * len(READERS) + list(READERS).index(api), names[number % len(names)]


REASONS = {"chat": "tool_calls", "responses": "stop", "messages": "tool_use", "ollama": "stop"}
CUT = {"chat": "length", "responses": "max_output_tokens", "ollama": "length"}
CUT |= {"messages": "model_context_window_exceeded"}


@pytest.mark.parametrize("api", READERS)
def test_no_call_of_a_response_is_lost(api: str, *, all_cases: bool) -> None:
    async def run() -> None:
        model = Scripted()
        for seed, name in cases(api, all_cases=all_cases):
            text, expected, schemas, thinking = scripted(seed, name)
            expected.reason = REASONS[api]
            parser = name if seed // 4 % 2 or name in WITHOUT_TAGS else "auto"
            model.says(pieces_of(random.Random(seed), text), parser, thinking)
            streamed = await model.request(api, schemas, streams=True)
            whole = await model.request(api, schemas, streams=False)
            assert parsed(streamed).stripped() == expected.stripped(), (seed, name, api, text)
            assert whole == streamed, (seed, name, api, text)

    asyncio.run(run())


@pytest.mark.parametrize("api", READERS)
def test_a_response_that_is_cut_is_the_same_whole_and_streamed(api: str, *, all_cases: bool) -> None:
    async def run() -> None:
        model = Scripted()
        for seed, name in islice(cases(api, all_cases=all_cases), 0, None, 3):
            text, _, schemas, thinking = scripted(seed, name)
            rng = random.Random(seed)
            text = text[: rng.randrange(1, len(text))]
            model.says(pieces_of(rng, text), name, thinking, "length")
            streamed = await model.request(api, schemas, streams=True)
            whole = await model.request(api, schemas, streams=False)
            assert whole == streamed, (seed, name, api, text)
            assert whole.reason == CUT[api], (seed, name, api, text)

    asyncio.run(run())
