"""The gateway over HTTP, streaming: what a user of the OpenAI API sees."""

import asyncio
import time
from collections.abc import Callable, Sequence

import aiohttp
import orjson

from lmdeploy.messages import GenerationConfig
from tools.bench.progress import ignore
from tools.bench.stats import Record, Summary, summarize
from tools.bench.workload import Request

DATA = b"data: "
DONE = b"data: [DONE]"


async def _answer(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    request: Request,
    sampling: GenerationConfig,
    counts_always: bool,
) -> Record:
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.output_len,
        "ignore_eos": True,
        "temperature": sampling.temperature if sampling.do_sample else 0.0,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.random_seed,
        "stream": True,
        "stream_options": {"include_usage": True} | ({"continuous_usage_stats": True} if counts_always else {}),
    }
    record = Record(started=time.perf_counter())
    async with session.post(f"{url}/v1/completions", data=orjson.dumps(body)) as response:
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(DATA) and not line.startswith(DONE):
                _note(record, orjson.loads(line[len(DATA) :]), time.perf_counter())
    if record.output_len != request.output_len:
        raise RuntimeError(f"a response has {record.output_len} tokens, expected {request.output_len}")
    return record


def _note(record: Record, event: dict[str, object], now: float) -> None:
    """Count an event's token; tokens whose text came with a later one are counted by the usage at the end."""
    if error := event.get("error"):
        raise RuntimeError(f"a response failed: {error}")
    choices = event.get("choices")
    if isinstance(choices, list) and choices and choices[0].get("text"):
        record.arrivals.append((now, 1))
    usage = event.get("usage")
    if isinstance(usage, dict):
        record.input_len = usage["prompt_tokens"]
        uncounted = usage["completion_tokens"] - record.output_len
        if uncounted:
            last, count = record.arrivals[-1] if record.arrivals else (now, 0)
            record.arrivals[-1:] = [(last, count + uncounted)]


async def _run(
    url: str,
    requests: Sequence[Request],
    concurrency: int,
    sampling: GenerationConfig,
    advance: Callable[[], None],
    counts_always: bool,
) -> tuple[list[Record], float]:
    waiting = list(reversed(requests))
    records: list[Record] = []
    headers = {"content-type": "application/json"}
    # Some servers close a connection after a response without saying so; a new one costs nothing alongside a request.
    connector = aiohttp.TCPConnector(limit=concurrency, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        async with session.get(f"{url}/v1/models") as response:
            model = orjson.loads(await response.read())["data"][0]["id"]

        async def stream() -> None:
            while waiting:
                records.append(await _answer(session, url, model, waiting.pop(), sampling, counts_always))
                advance()

        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as streams:
                for _ in range(concurrency):
                    streams.create_task(stream())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return records, time.perf_counter() - started


def over_http(
    url: str,
    requests: Sequence[Request],
    concurrency: int,
    sampling: GenerationConfig,
    advance: Callable[[], None] = ignore,
    *,
    counts_always: bool = False,
) -> list[Record]:
    """As :func:`run_over_http`, with the record of each response.

    Parameters
    ----------
    counts_always
        Ask for the tokens of each event (vLLM's ``continuous_usage_stats``): else one is counted for each, and what
        they do not account for at the end.
    """
    return asyncio.run(_run(url.rstrip("/"), requests, concurrency, sampling, advance, counts_always))[0]


def run_over_http(
    url: str,
    requests: Sequence[Request],
    concurrency: int,
    sampling: GenerationConfig,
    advance: Callable[[], None] = ignore,
) -> Summary:
    """Answer all requests through a gateway, this many at a time.

    Parameters
    ----------
    url
        Of the gateway, without ``/v1``.
    requests
        Started in this order; a new one as soon as one ends.
    concurrency
        Most requests open at a time.
    sampling
        How to choose tokens; lengths come from the requests.
    advance
        Called after each request.

    Raises
    ------
    RuntimeError
        A request was refused or failed, or its response has not the length asked for.
    """
    return summarize(*asyncio.run(_run(url.rstrip("/"), requests, concurrency, sampling, advance, False)))
