"""Request bodies made to cost much more than they are long. Generated: the corpus would be hundreds of megabytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 8 * 2**20  # the default of --max-body-bytes
MODEL = "fake-model"
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "a"}]


@dataclass(frozen=True)
class Hostile:
    """One body.

    ``path``: where it is sent. ``make``: returns its bytes. ``is_rejected``: whether it has to be; if not it is merely
    large.
    """

    path: str
    make: Callable[[], bytes]
    is_rejected: bool = True


@dataclass(frozen=True)
class Sent:
    """One request.

    ``name``: what it tries; ``body``: its bytes, or what returns them, as some are long; ``may_be_served``: whether a
    caller with a key may get what it asks for; ``connections``: on how many connections it is sent at a time;
    ``leaves``: the client closes them a moment later, and reads nothing.
    """

    name: str
    method: str
    path: str
    body: bytes | Callable[[], bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    may_be_served: bool = False
    connections: int = 1
    leaves: bool = False

    def make(self) -> bytes:
        """Return the body."""
        return self.body() if callable(self.body) else self.body


JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data; boundary=x"}


def form(*parts: tuple[str, bytes]) -> bytes:
    """Return a form of these parts: the rest of what describes each, and its content."""
    head = b"--x\r\ncontent-disposition: form-data; "
    return (
        b"".join([head + about.encode() + b"\r\n\r\n" + content + b"\r\n" for about, content in parts]) + b"--x--\r\n"
    )


def filled(before: str, element: str, after: str, length: int = MAX_BYTES) -> bytes:
    """Return JSON text with a list of as many of an element as fit."""
    room = length - len((before + after).encode())
    size = len(element.encode()) + 1
    return (before + ",".join([element] * ((room + 1) // size)) + after).encode()


def _field(path: str, name: str, element: str, length: int = MAX_BYTES) -> Hostile:
    """Return a body of which one field is a list of as many of an element as fit."""
    head = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "a"}, RESPONSES: {"input": "a"}}.get(path, {})
    fields = json.dumps({"model": MODEL} | {key: value for key, value in head.items() if key != name})
    return Hostile(path, lambda: filled(f'{fields[:-1]}, "{name}": [', element, "]}", length))


def _text(path: str, fields: dict[str, Any], name: str, unit: str, *, is_rejected: bool) -> Hostile:
    """Return a body of which one field is as long a text as fits."""

    def make() -> bytes:
        empty = json.dumps({**fields, name: ""}).encode()
        size = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
        times = (MAX_BYTES - len(empty)) // size
        return json.dumps({**fields, name: unit * times}, ensure_ascii=False).encode()

    return Hostile(path, make, is_rejected)


def _keys(path: str, name: str, value: str, length: int = MAX_BYTES) -> Hostile:
    """Return a body of which one field is an object of as many keys as fit."""
    head = {"model": MODEL, "messages": HELLO} if path == CHAT else {"model": MODEL, "input": "a"}

    def make() -> bytes:
        begin = f'{json.dumps(head)[:-1]}, "{name}": {{'
        count = (length - len(begin) - 2) // (len(value) + 11)
        return (begin + ",".join(f'"{number:07d}":{value}' for number in range(count)) + "}}").encode()

    return Hostile(path, make)


def _schema(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"enum": list(range(count))}}}


def _tools(tools: int, values: int) -> bytes:
    function = {"name": "f", "parameters": _schema(values)}
    made = [{"type": "function", "function": function}] * tools
    return json.dumps({"model": MODEL, "messages": HELLO, "tools": made, "tool_choice": "required"}).encode()


def _half(piece: bytes) -> bytes:
    return piece * (MAX_BYTES // len(piece))


_CHAT_FIELDS: dict[str, Any] = {"model": MODEL, "messages": HELLO}
BODIES: dict[str, Hostile] = {
    "half a megabyte of wrong messages": _field(CHAT, "messages", "1", 2**19),
    "wrong messages": _field(CHAT, "messages", "1"),
    "empty messages": _field(CHAT, "messages", "{}"),
    "lists for messages": _field(CHAT, "messages", "[]"),
    "tiny messages": _field(CHAT, "messages", '{"role":"user","content":""}'),
    "messages without content": _field(CHAT, "messages", '{"role":"user"}'),
    "messages with unknown fields": _field(CHAT, "messages", '{"role":"user","content":"","a":[[]]}'),
    "parts of a message": Hostile(
        CHAT,
        lambda: filled(
            f'{{"model":"{MODEL}","messages":[{{"role":"user","content":[', '{"type":"text","text":""}', "]}]}"
        ),
    ),
    "wrong parts of a message": Hostile(
        CHAT, lambda: filled(f'{{"model":"{MODEL}","messages":[{{"role":"user","content":[', "1", "]}]}")
    ),
    "tool calls of a message": Hostile(
        CHAT,
        lambda: filled(
            f'{{"model":"{MODEL}","messages":[{{"role":"assistant","tool_calls":[',
            '{"id":"","function":{"name":"","arguments":""}}',
            "]}]}",
        ),
    ),
    "a field nobody knows": _field(CHAT, "unknown", "[]"),
    "a field nobody knows, of short strings": _field(CHAT, "unknown", '"ab"'),
    "a field nobody knows, of wide strings": _field(CHAT, "unknown", '"中a"'),
    "a field nobody knows, of numbers": _field(CHAT, "unknown", "1.5e8"),
    "a field nobody knows, of keys": _keys(CHAT, "unknown", "0"),
    "tools": _field(CHAT, "tools", '{"type":"function","function":{"name":"f"}}'),
    "wrong tools": _field(CHAT, "tools", "1"),
    "a tool with a huge schema": Hostile(CHAT, lambda: _tools(1, 500_000)),
    "tools with large schemas": Hostile(CHAT, lambda: _tools(128, 7_000)),
    "a huge schema for the response": Hostile(
        CHAT,
        lambda: json.dumps(
            _CHAT_FIELDS
            | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _schema(500_000)}}}
        ).encode(),
    ),
    "stop words": _field(CHAT, "stop", '"ab"'),
    "wrong stop words": _field(CHAT, "stop", "[]"),
    "a long stop word": _text(CHAT, _CHAT_FIELDS | {"n": 128}, "stop", "ab", is_rejected=True),
    "bad words": _field(CHAT, "bad_words", '"ab"'),
    "long bad words": _field(CHAT, "bad_words", '"' + "ab" * 65536 + '"'),
    "stop tokens": _field(CHAT, "stop_token_ids", "7"),
    "wrong stop tokens": _field(CHAT, "stop_token_ids", '""'),
    "a bias for everything": _keys(CHAT, "logit_bias", "1"),
    "wrong biases": _keys(CHAT, "logit_bias", '"a"'),
    "metadata": _keys(RESPONSES, "metadata", "1"),
    "a long model name": _text(CHAT, {"messages": HELLO}, "model", "ab", is_rejected=True),
    "a long key": Hostile(
        RESPONSES, lambda: json.dumps({"input": "a", "metadata": {"a" * (MAX_BYTES - 99): 1}}).encode()
    ),
    "wrong input items": _field(RESPONSES, "input", "1"),
    "input items": _field(RESPONSES, "input", '{"role":"user","content":""}'),
    "included things": _field(RESPONSES, "include", '"a"'),
    "prompts": _field(COMPLETIONS, "prompt", '"a"'),
    "wrong prompts": _field(COMPLETIONS, "prompt", "[]"),
    "prompts of tokens": _field(COMPLETIONS, "prompt", "[1]"),
    "too many tokens": _field(COMPLETIONS, "prompt", "1"),
    "tokens, the last one wrong": Hostile(
        COMPLETIONS, lambda: filled(f'{{"model":"{MODEL}","prompt":[', "1", ',"a"]}', 1_900_000)
    ),
    "a prompt reported 128 times": _text(
        COMPLETIONS, {"model": MODEL, "echo": True, "n": 128, "max_tokens": 1}, "prompt", "ab", is_rejected=True
    ),
    "scores reported 128 times": Hostile(
        COMPLETIONS,
        lambda: json.dumps(
            {"model": MODEL, "echo": True, "n": 128, "logprobs": 20, "prompt": "a " * 10_000, "max_tokens": 1}
        ).encode(),
    ),
    "texts to encode": _field("/v1/encode", "input", '"a"'),
    "tokens to decode": _field("/detokenize", "tokens", "1"),
    "wrong tokens to decode": _field("/detokenize", "tokens", "[]"),
    "nothing but opening brackets": Hostile(CHAT, lambda: _half(b"[")),
    "nothing but opening braces": Hostile(CHAT, lambda: _half(b'{"a":')),
    "nothing but quotes": Hostile(CHAT, lambda: _half(b'"')),
    "nothing but backslashes": Hostile(CHAT, lambda: b'["' + _half(b"\\")[:-2]),
    "nothing but commas": Hostile(CHAT, lambda: b"[" + _half(b",")[:-1]),
    "nothing but zeros": Hostile(CHAT, lambda: _half(b"\x00")),
    "nothing but half characters": Hostile(CHAT, lambda: b'"' + _half(b"\xf0")[:-2] + b'"'),
    "a number of eight million digits": Hostile(CHAT, lambda: b'{"a":' + _half(b"9")[:-6] + b"}"),
    "prose": _text(COMPLETIONS, {"model": MODEL}, "prompt", "All work, and no play. ", is_rejected=False),
    "a table": _text(COMPLETIONS, {"model": MODEL}, "prompt", '{"a":[1,2]},\n', is_rejected=False),
    "wide prose": _text(COMPLETIONS, {"model": MODEL}, "prompt", "只工作不玩耍，", is_rejected=False),
    "prose with a parrot": Hostile(
        COMPLETIONS,
        lambda: json.dumps({"model": MODEL, "prompt": "a" * (MAX_BYTES - 999) + "🦜"}, ensure_ascii=False).encode(),
        is_rejected=False,
    ),
    "as many tokens as may be": Hostile(
        COMPLETIONS, lambda: filled(f'{{"model":"{MODEL}","prompt":[', "151643", "]}", 6_999_000), is_rejected=False
    ),
}
