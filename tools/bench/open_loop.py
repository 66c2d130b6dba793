"""Requests that arrive when they arrive, whether or not the server keeps up."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from tools.bench.progress import ignore
from tools.bench.stats import Record, Summary, summarize
from tools.bench.workload import Request

_DATA = b"data: "
_DONE = b"data: [DONE]"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What to ask, and how.

    Attributes
    ----------
    url : str
        Of the endpoint.
    model : str
        Its id.
    stream, ignore_eos : bool
        Fields of each request.
    extra : dict
        Further fields of each request.
    headers : dict
        Of each request.
    """

    url: str
    model: str
    stream: bool = True
    ignore_eos: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """What came of it."""

    summary: Summary
    failures: list[str]
    records: list[Record]


async def run_open_loop(
    target: Target,
    requests: Sequence[Request],
    rate: float,
    most_open: int,
    seed: int,
    advance: Callable[[], None] = ignore,
) -> Load:
    """Send all requests and return when all are answered.

    Parameters
    ----------
    target
        The server.
    requests
        In this order.
    rate
        Mean requests a second of a Poisson process; infinity: all at once.
    most_open
        Connections at a time; further requests wait, and their waiting counts.
    seed
        Of the arrival times.
    advance
        Called after each request.
    """
    generator = random.Random(seed)
    records: list[Record] = []
    failures: list[str] = []
    connector = aiohttp.TCPConnector(limit=most_open)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    headers = {"content-type": "application/json", **target.headers}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:

        async def ask(request: Request) -> None:
            try:
                records.append(await _ask(session, target, request))
            except (aiohttp.ClientError, TimeoutError, RuntimeError, ValueError) as error:
                failures.append(repr(error))
            advance()

        begin = time.perf_counter()
        asking = []
        for request in requests:
            asking.append(asyncio.create_task(ask(request)))
            if not math.isinf(rate):
                await asyncio.sleep(generator.expovariate(rate))
        await asyncio.gather(*asking)
        seconds = time.perf_counter() - begin
    if not records:
        raise RuntimeError(f"no request was answered: {failures[0]}")
    return Load(summarize(records, seconds), failures, records)


async def _ask(session: aiohttp.ClientSession, target: Target, request: Request) -> Record:
    body = {
        "model": target.model,
        "prompt": request.prompt,
        "temperature": 0.0,
        "best_of": 1,
        "max_tokens": request.output_len,
        "stream": target.stream,
        "ignore_eos": target.ignore_eos,
    }
    if target.stream:
        body["stream_options"] = {"include_usage": True}
    record = Record(started=time.perf_counter())
    async with session.post(target.url, data=orjson.dumps(body | target.extra)) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {(await response.text())[:300]}")
        if not target.stream:
            _count(record, orjson.loads(await response.read()), time.perf_counter())
        else:
            async for line in response.content:
                if line.startswith(_DATA) and not line.startswith(_DONE):
                    _count(record, orjson.loads(line[len(_DATA) :]), time.perf_counter())
    if not record.arrivals:
        raise RuntimeError("a response has no text")
    return record


def _count(record: Record, said: dict[str, Any], now: float) -> None:
    """Count what an event brings: a token for a piece of text, corrected by the usage at the end."""
    if error := said.get("error"):
        raise RuntimeError(f"a response failed: {error}")
    if any(choice.get("text") for choice in said.get("choices", ())):
        record.arrivals.append((now, 1))
    if usage := said.get("usage"):
        record.input_len = usage["prompt_tokens"]
        missing = usage["completion_tokens"] - record.output_len
        last, count = record.arrivals.pop() if record.arrivals else (now, 0)
        record.arrivals.append((last, max(1, count + missing)))
