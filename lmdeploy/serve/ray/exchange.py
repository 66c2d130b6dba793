"""Messages between ingress and replicas, pickled by Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from lmdeploy.serve.affinity import prefix_keys, session_key
from openai_gateway.parsing import check_size

SESSION_HEADER = "x-session-id"
REPLICA_HEADER = "x-replica"
UNAVAILABLE = 503  # the status of a replica that another one can stand in for
_PROMPTS = ("messages", "prompt", "input")  # the field that holds it, of any endpoint


@dataclass(frozen=True)
class RoutedRequest:
    """An HTTP request, and what the router goes by."""

    # The request; its path is decoded, its query is not
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    model: str = ""  # what the body names
    session: int | None = None  # key of its session
    keys: tuple[int, ...] = ()  # of its prompt's prefixes
    avoided: frozenset[str] = frozenset()  # replicas that could not answer it

    def avoiding(self, replica: str) -> RoutedRequest:
        """Return the same request for another replica."""
        return replace(self, avoided=self.avoided | {replica})


@dataclass(frozen=True)
class Head:
    """The beginning of a response; bytes of its body follow."""

    replica: str  # who answers
    # As its server says
    status: int
    headers: Mapping[str, str]


def with_routing(request: RoutedRequest, session_header: str | None) -> RoutedRequest:
    """Return a request with what the router goes by; what is wrong with its JSON is for the replica to say.

    Raises `ApiError` if the body would take too much memory as objects.
    """
    fields: Any = None
    body = request.body
    if body and request.method == "POST":
        check_size(body)
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            fields = None
    if not isinstance(fields, dict):
        fields = {}
    model = fields.get("model")
    model = model if isinstance(model, str) else ""
    session = session_header or fields.get("session_id")
    is_session = isinstance(session, str) or (isinstance(session, int) and session >= 0)
    prompt = next((fields[name] for name in _PROMPTS if name in fields), None)
    return replace(
        request,
        model=model,
        session=session_key(str(session)) if is_session else None,
        keys=prefix_keys(_written(prompt, fields.get("tools")), model),
    )


def _written(prompt: object, tools: object) -> bytes:
    """Return a prompt as bytes of which a longer conversation's begin alike: tools come first, as in templates."""
    try:
        head = orjson.dumps(tools) if tools else b""
        if prompt is None:
            return head
        return head + (prompt.encode(errors="replace") if isinstance(prompt, str) else orjson.dumps(prompt)[:-1])
    except orjson.JSONEncodeError:  # nested more deeply than orjson writes
        return b""
