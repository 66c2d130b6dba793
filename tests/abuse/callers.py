"""Callers of a server: they send one request, take its response in their manner, and say how it ended."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import orjson

ANSWER_SECONDS = 120.0  # a request without an end after so long counts as unanswered
DATA = b"data: "
DONE = b"data: [DONE]"

CHAT = "/v1/chat/completions"
PROMPT = "Write down what comes to your mind."

Manner = Literal["read", "leave", "unread", "unfinished"]


@dataclass(frozen=True)
class Call:
    """One request and how its response is taken.

    ``name``: what it is, for reports. ``path``: where it is sent. ``body``: its JSON; the model's name is put in by the
    caller. ``manner``: ``read``: to its end; ``leave``: to the first token, then the connection is closed; ``unread``:
    nothing is read; ``unfinished``: not even the request is sent to its end.
    """

    name: str
    path: str
    body: dict[str, Any] = field(repr=False)
    manner: Manner = "read"


def read_corpus() -> list[Call]:
    """Return the requests of corpus.json, which are made to hurt others."""
    path = Path(__file__).with_name("corpus.json")
    return [_hostile(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _hostile(entry: dict[str, Any]) -> Call:
    path = entry["path"]
    prompt = {"messages": [{"role": "user", "content": PROMPT}]} if path == CHAT else {"prompt": PROMPT}
    body = {**prompt, "max_tokens": entry["max_tokens"], "ignore_eos": True, "stream": True, **entry.get("fields", {})}
    if fill := entry.get("fill"):
        body[fill["field"]] = [fill["element"]] * fill["count"]
    if repeat := entry.get("repeat"):
        body[repeat["field"]] = repeat["text"] * repeat["count"]
    return Call(entry["name"], path, body, entry.get("manner", "read"))


@dataclass
class Outcome:
    """How a request ended.

    ``name``: of the request. ``end``: ``answered``; ``refused`` (4xx); ``overloaded`` (429, 503); ``failed`` (5xx, an
    error event, a connection that broke); ``left`` by the caller; ``cut``: whoever drives the callers stopped waiting;
    or ``unanswered``, which must never be. ``detail``: what a failure said.
    """

    name: str
    end: str = "unanswered"
    detail: str = ""


class Caller:
    """Sends requests to one server, each over its own connection.

    ``url``: of the gateway, without ``/v1``. ``model``: the name it is asked for. ``key``: an API key; None: the server
    asks for none. ``outcomes``: of all requests, in the order in which they were sent.
    """

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        self.url = url
        self.model = model
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"
        self.outcomes: list[Outcome] = []

    async def send(self, request: Call, seconds: float = 5.0) -> Outcome:
        """Send one request and return how it ended.

        ``request``: the request; ``seconds``: seconds for which an unread response or an unfinished request stays open.
        """
        outcome = Outcome(request.name)
        self.outcomes.append(outcome)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if request.manner in ("unread", "unfinished"):
                    await self._hold(request, outcome, seconds)
                else:
                    await self._read(request, outcome)
        except TimeoutError:
            outcome.detail = f"no end after {ANSWER_SECONDS:.0f} s"
        except (aiohttp.ClientError, OSError) as error:
            outcome.end, outcome.detail = "failed", repr(error)
        except asyncio.CancelledError:
            outcome.end = "cut"
            raise
        return outcome

    def _body(self, request: Call) -> bytes:
        return orjson.dumps({"model": self.model} | request.body)

    async def _read(self, request: Call, outcome: Outcome) -> None:
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as session,
            session.post(self.url + request.path, data=self._body(request)) as response,
        ):
            if response.status != 200:
                outcome.end = _rejection(response.status)
                outcome.detail = (await response.text())[:300]
                return
            if not request.body.get("stream"):
                await response.read()
                outcome.end = "answered"
                return
            async for line in response.content:
                if not line.startswith(DATA) or line.startswith(DONE):
                    continue
                if b'"error":{' in line:
                    outcome.end, outcome.detail = "failed", line.decode()[:300]
                    return
                if request.manner == "leave":
                    outcome.end = "left"
                    return
            outcome.end = "answered"

    async def _hold(self, request: Call, outcome: Outcome, seconds: float) -> None:
        """Send the request, all of it or but the last byte, and read nothing until the connection is closed."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        body = self._body(request)
        head = f"POST {request.path} HTTP/1.1\r\nhost: {host}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        sent = body[:-1] if request.manner == "unfinished" else body
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        try:
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + sent)
            await writer.drain()
            await asyncio.sleep(seconds)
            outcome.end = "left"
        finally:
            writer.close()


def _rejection(status: int) -> str:
    if status in (429, 503):
        return "overloaded"
    return "refused" if status < 500 else "failed"
