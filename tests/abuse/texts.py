"""Request bodies whose texts are no Unicode: halves of surrogate pairs, and UTF-8 that was cut or never was any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.abuse.bodies import CHAT, COMPLETIONS, MODEL, RESPONSES

ESCAPES = (rb"a\ud800", rb"\udfff")  # as JSON spells them
BYTES = (b"a\xf0\x9f", b"\xed\xa0\x80", b"\xff", b"\xc3")
_TARGET = "here it is"
_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}
_CALL = {"id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAMPLES: dict[str, dict[str, Any]] = {
    CHAT: {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "a", "name": "n"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "i", "content": {"a": "b"}},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:", "detail": "low"}}]},
        ],
        "tools": [_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "stop": ["s"],
        "bad_words": ["s"],
        "user": "u",
        "cache_salt": "x",
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": "b"},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        "logit_bias": {"1": 1},
        "metadata": {"a": "b"},
    },
    COMPLETIONS: {"model": MODEL, "prompt": ["a"], "suffix": "s", "stop": "x", "user": "u"},
    RESPONSES: {
        "model": MODEL,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
        ],
        "instructions": "i",
        "metadata": {"a": "b"},
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "text": {"format": {"type": "text"}},
        "include": ["x"],
    },
    "/v1/messages": {
        "model": MODEL,
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "b"}},
                ],
            },
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
            {
                "role": "user",
                "content": [
                    {"type": "document", "source": {"type": "text", "data": "d"}, "title": "t", "context": "c"},
                    {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
                ],
            },
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f"},
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low"},
    },
    "/v1/messages/count_tokens": {"model": MODEL, "messages": [{"role": "user", "content": "a"}]},
    "/api/chat": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "a"}],
        "options": {"stop": ["a"]},
        "format": "json",
        "keep_alive": "5m",
        "tools": [_TOOL],
    },
    "/api/generate": {"model": MODEL, "prompt": "a", "system": "s", "suffix": "s", "format": {"type": "object"}},
    "/api/show": {"model": MODEL},
    "/api/embed": {"model": MODEL, "input": ["a"]},
    "/api/embeddings": {"model": MODEL, "prompt": "a"},
    "/v1/embeddings": {"model": MODEL, "input": ["a"], "user": "u", "encoding_format": "float"},
    "/embed": {"inputs": ["a"], "prompt_name": "p"},
    "/embed_all": {"inputs": ["a"], "prompt_name": "p"},
    "/embed_sparse": {"inputs": ["a"], "prompt_name": "p"},
    "/predict": {"inputs": [["a", "b"]]},
    "/v1/rerank": {"model": MODEL, "query": "q", "documents": ["a"]},
    "/v1/score": {"model": MODEL, "text_1": "q", "text_2": ["a"]},
    "/v1/classify": {"model": MODEL, "input": ["a"]},
    "/v1/pooling": {"model": MODEL, "input": ["a"]},
    "/v1/encode": {"model": MODEL, "input": "a"},
    "/tokenize": {"model": MODEL, "prompt": "a"},
    "/detokenize": {"model": MODEL, "tokens": [1]},
    "/v1/chat/interactive": {"prompt": "a", "session_id": 1, "model": MODEL},
    "/v1/batches": {"input_file_id": "file-0", "endpoint": COMPLETIONS, "completion_window": "24h"},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "b"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/v1/cache/drop": {"model": MODEL, "tier": "all"},
    "/v1/cache/pin": {"model": MODEL, "prompt": "a", "lora_name": "l", "cache_salt": "s", "api_key": "k"},
    "/v1/cache/unpin": {"model": MODEL, "messages": [{"role": "user", "content": "a"}]},
    "/v1/load_model": {"model_name": "a"},
    "/v1/unload_model": {"model_name": "a"},
}
"""A body of each path, in which every text is one that a caller may choose."""


def broken_texts(path: str) -> Iterator[bytes]:
    """Yield the sample of a path as often as it has texts and keys, each time with another of them broken."""
    marked = [json.dumps(text).encode() for text in _marked(SAMPLES[path])]
    for number, body in enumerate(marked):
        for broken in (ESCAPES[number % len(ESCAPES)], BYTES[number % len(BYTES)]):
            yield body.replace(_TARGET.encode(), broken)


def _marked(value: Any) -> Iterator[Any]:
    """Yield a JSON value with another one of its texts and keys exchanged for the mark each time."""
    if isinstance(value, str):
        yield _TARGET
    elif isinstance(value, list):
        for index, item in enumerate(value):
            for changed in _marked(item):
                yield [*value[:index], changed, *value[index + 1 :]]
    elif isinstance(value, dict):
        for key, item in value.items():
            yield {_TARGET if name == key else name: value[name] for name in value}
            for changed in _marked(item):
                yield value | {key: changed}
