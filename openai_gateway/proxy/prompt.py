"""Prompt of a forwarded request, as far as strategies route by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from pydantic import BaseModel

from lmdeploy.serve.affinity import prefix_keys, session_key

SESSION_HEADER = "x-session-id"


class ForwardedBody(BaseModel):
    """The fields of a body that a proxy reads; a node validates them, and all others."""

    model: Any = None
    session_id: Any = None
    tools: Any = None
    # The prompt, of any endpoint
    messages: Any = None
    prompt: Any = None
    input: Any = None


@dataclass(frozen=True)
class Prompt:
    """Model, session and prefixes of a request."""

    body: ForwardedBody = field(default_factory=ForwardedBody)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.body.model)

    @property
    def session(self) -> int | None:
        """Key of its session, if it has one."""
        session = self.headers.get(SESSION_HEADER) or self.body.session_id
        is_session = isinstance(session, str) or (isinstance(session, int) and session >= 0)
        return session_key(str(session)) if is_session else None

    @cached_property  # a request that is sent again, or waits, asks again
    def keys(self) -> tuple[int, ...]:
        """Keys of its prefixes; none where the prompt cannot be read."""
        return prefix_keys(self._written(), self.model)

    def _written(self) -> bytes:
        """Return bytes that begin alike for a conversation and a longer one: tools come first, as in templates."""
        body = self.body
        given = (value for value in (body.messages, body.prompt, body.input) if value is not None)
        prompt = next(given, "")
        try:
            head = orjson.dumps(body.tools) if body.tools else b""
            return head + (prompt.encode(errors="replace") if isinstance(prompt, str) else orjson.dumps(prompt)[:-1])
        except orjson.JSONEncodeError:  # nested more deeply than orjson writes
            return b""


NO_PROMPT = Prompt()
