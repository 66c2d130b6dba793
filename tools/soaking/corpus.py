"""Requests made to hurt others, and their harmless twins: `tests/abuse/corpus.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

CORPUS = Path(__file__).resolve().parent.parent.parent / "tests" / "abuse" / "corpus.json"
CHAT = "/v1/chat/completions"
PROMPT = "Write down what comes to your mind."

Manner = Literal["read", "leave", "unread", "unfinished"]


@dataclass(frozen=True)
class Ask:
    """One request and how its response is taken.

    Attributes
    ----------
    name
        What it is, for reports.
    path
        Where it is sent.
    body
        Its JSON; the model's name is put in by the caller.
    manner
        ``read``: to its end; ``leave``: to the first token, then the connection is closed; ``unread``: nothing is read;
        ``unfinished``: not even the request is sent to its end.
    """

    name: str
    path: str
    body: dict[str, Any] = field(repr=False)
    manner: Manner = "read"


def read_corpus(path: Path = CORPUS) -> list[tuple[Ask, Ask]]:
    """Return the hostile requests of a file, each with its twin: same prompt, same length of the response, no harm."""
    return [_pair(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _pair(entry: dict[str, Any]) -> tuple[Ask, Ask]:
    path, name = entry["path"], entry["name"]
    hostile = _body(path, entry["max_tokens"]) | entry.get("fields", {})
    if fill := entry.get("fill"):
        hostile[fill["field"]] = [fill["element"]] * fill["count"]
    if repeat := entry.get("repeat"):
        hostile[repeat["field"]] = repeat["text"] * repeat["count"]
    harmless = _body(path, entry.get("twin_tokens", entry["max_tokens"]))
    return Ask(name, path, hostile, entry.get("manner", "read")), Ask(f"twin of {name}", path, harmless)


def _body(path: str, max_tokens: int) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": PROMPT}]} if path == CHAT else {"prompt": PROMPT}
    return {**prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
