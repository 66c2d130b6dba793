"""Completions over HTTP: this many at a time, or as they arrive, whether or not the server keeps up."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from lmdeploy.messages import GenerationConfig
from tools.bench.report import ignore
from tools.bench.stats import Record, Summary, summarize
from tools.bench.workload import Request

_DATA, _DONE = b"data: ", b"data: [DONE]"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server and the fields of each request to it."""

    url: str  # of the server, without ``/v1``
    model: str
    stream: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, session: aiohttp.ClientSession, request: Request) -> Record:
        """Return when the tokens of a response came.

        Raises `RuntimeError` if the server refused the request, or its response failed or has no text.
        """
        body = {"model": self.model, "prompt": request.prompt, "max_tokens": request.output_len, "stream": self.stream}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        record = Record(started=time.perf_counter())
        async with session.post(f"{self.url}/v1/completions", data=orjson.dumps(body | dict(self.fields))) as response:
            if response.status != 200:
                raise RuntimeError(f"{self.url} answered {response.status}: {(await response.text())[:300]}")
            if not self.stream:
                _count(record, orjson.loads(await response.read()), time.perf_counter())
            else:
                async for line in response.content:
                    if line.startswith(_DATA) and not line.startswith(_DONE):
                        _count(record, orjson.loads(line[len(_DATA) :]), time.perf_counter())
        if not record.arrivals:
            raise RuntimeError("a response has no text")
        return record


def _count(record: Record, event: Mapping[str, Any], now: float) -> None:
    """Count an event's token; tokens whose text came with a later one are counted by the usage at the end."""
    if error := event.get("error"):
        raise RuntimeError(f"a response failed: {error}")
    if any(choice.get("text") for choice in event.get("choices") or ()):
        record.arrivals.append((now, 1))
    if usage := event.get("usage"):
        record.input_len = usage["prompt_tokens"]
        uncounted = usage["completion_tokens"] - record.output_len
        last, count = record.arrivals.pop() if record.arrivals else (now, 0)
        record.arrivals.append((last, max(1, count + uncounted)))


def open_session(max_open: int, headers: Mapping[str, str]) -> AbstractAsyncContextManager[aiohttp.ClientSession]:
    """Return a session with at most this many connections, one for each request."""
    # Some servers close a connection after a response without saying so; a new one costs nothing alongside a request.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_open, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=600),
        headers={"content-type": "application/json", **headers},
    )


def run_over_http(
    url: str,  # of the server, without ``/v1``
    requests: Sequence[Request],  # started in this order; a new one as soon as one ends
    concurrency: int,  # most requests open at a time
    sampling: GenerationConfig,  # how to choose tokens; lengths come from the requests
    advance: Callable[[], None] = ignore,  # called after each request
) -> Summary:
    """Answer all requests by a server's first model, this many at a time.

    Raises `RuntimeError` if a request was refused or failed, or its response has not the length asked for.
    """
    return asyncio.run(_in_turn(url.rstrip("/"), requests, concurrency, sampling, advance))


async def _in_turn(
    url: str, requests: Sequence[Request], concurrency: int, sampling: GenerationConfig, advance: Callable[[], None]
) -> Summary:
    fields = {
        "ignore_eos": True,
        "temperature": sampling.temperature if sampling.do_sample else 0.0,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.random_seed,
    }
    waiting = list(reversed(requests))
    records: list[Record] = []
    async with open_session(concurrency, {}) as session:
        async with session.get(f"{url}/v1/models") as response:
            target = Target(url=url, model=orjson.loads(await response.read())["data"][0]["id"], fields=fields)

        async def stream() -> None:
            while waiting:
                request = waiting.pop()
                record = await target.send(session, request)
                if record.output_len != request.output_len:
                    raise RuntimeError(f"a response has {record.output_len} tokens, expected {request.output_len}")
                records.append(record)
                advance()

        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as streams:
                for _ in range(concurrency):
                    streams.create_task(stream())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return summarize(records, time.perf_counter() - started)


@dataclass(frozen=True)
class Load:
    """Responses to requests that arrived by themselves."""

    summary: Summary
    failures: list[str]
    records: list[Record]


async def run_open_loop(
    target: Target,
    requests: Sequence[Request],  # in this order
    rate: float,  # mean requests a second of a Poisson process; infinity: all at once
    max_open: int,  # connections at a time; further requests wait, and their waiting counts
    seed: int,  # of the arrival times
    advance: Callable[[], None] = ignore,  # called after each request
) -> Load:
    """Send all requests and return when all are answered."""
    generator = random.Random(seed)
    records: list[Record] = []
    failures: list[str] = []
    async with open_session(max_open, target.headers) as session:

        async def send(request: Request) -> None:
            try:
                records.append(await target.send(session, request))
            except (aiohttp.ClientError, TimeoutError, RuntimeError, ValueError) as error:
                failures.append(repr(error))
            advance()

        begin = time.perf_counter()
        tasks = []
        for request in requests:
            tasks.append(asyncio.create_task(send(request)))
            if not math.isinf(rate):
                await asyncio.sleep(generator.expovariate(rate))
        await asyncio.gather(*tasks)
        seconds = time.perf_counter() - begin
    if not records:
        raise RuntimeError(f"no request was answered: {failures[0]}")
    return Load(summarize(records, seconds), failures, records)
