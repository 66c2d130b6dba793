"""Responses to 60 schemas of function calling: ``python -m tools.bench calls [MODEL]``.

- seconds to the first token with a schema never seen, and of a request without one;
- tokens per second of one stream, whose forced text is drafted, and of the same tokens without a schema;
- with ``--compile``, 95th percentile of the seconds between tokens of a free stream while another request's expression
  is compiled, and alone;
- with ``--llama``, tokens per second of 1 and 8 streams, compared with llama.cpp's server with the same schemas.

The sides of a comparison run in turn, so that what else the machine does falls on both.
"""

import argparse
import contextlib
import json
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.json_schema import enforceable
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.paths import default_model_dir, locate_model
from tools.bench.peers.llama_cpp import serving
from tools.bench.peers.places import gguf, why_missing
from tools.bench.structured.schemas import CALL_SCHEMAS

TOKENS = 96
SLOT = 512
STREAMS_COMPARED = 3  # free ones, one after the other
HOSTILE = "^([a-z]{{1,40}}[{}-9]{{1,40}}){{1,3}}$"
PROMPTS = [f"Call {name}." for name in CALL_SCHEMAS]
SCHEMAS = [enforceable(schema) for schema in CALL_SCHEMAS.values()]
Run = Callable[[Sequence[int]], int]
"""Responds to the prompts of these numbers, all at a time; returns how many tokens came."""


def config(length: int, number: int, schema: dict[str, Any] | None) -> GenerationConfig:
    """Return how a response is generated; one without a schema does not end early."""
    return GenerationConfig(
        max_new_tokens=length,
        min_new_tokens=length if schema is None else None,
        do_sample=True,
        top_k=40,
        random_seed=number,
        response_format=schema and {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}},
    )


def lengths_of(engine: AsyncEngine, numbers: Sequence[int], schemas: Sequence[dict[str, Any] | None]) -> list[int]:
    """Return how many tokens each response has."""
    configs = [config(TOKENS, number, schemas[number]) for number in numbers]
    return [each.generate_token_len for each in engine([PROMPTS[number] for number in numbers], configs)]


def first_tokens(engine: AsyncEngine) -> str:
    """Return a line: seconds to the first token, with a schema never seen and without one."""
    pairs = []
    for number, prompt in enumerate(PROMPTS):
        start = time.perf_counter()
        engine(f"With: {prompt}", config(1, number, SCHEMAS[number]))
        middle = time.perf_counter()
        engine(f"Free: {prompt}", config(1, number, None))
        pairs.append((middle - start, time.perf_counter() - middle))
    ratios = sorted(one / other for one, other in pairs)
    (a, b) = (statistics.median(side) * 1000 for side in zip(*pairs, strict=True))
    return (
        f"first token: {a:.1f} ms / {b:.1f} ms; ratio median {statistics.median(ratios):.2f}, largest {ratios[-1]:.2f}"
    )


def one_stream(engine: AsyncEngine, numbers: Sequence[int]) -> str:
    """Return a line: tokens per second of one stream, with schemas and without."""
    ratios = []
    for number in numbers:
        start = time.perf_counter()
        (length,) = lengths_of(engine, [number], SCHEMAS)
        middle = time.perf_counter()
        engine(PROMPTS[number], config(length, number, None))
        ratios.append((time.perf_counter() - middle) / (middle - start))
    return f"one stream, schema / plain: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"


def from_llama(url: str, number: int) -> int:
    """Return how many tokens llama.cpp's server responds with."""
    body = {
        "prompt": PROMPTS[number],
        "json_schema": list(CALL_SCHEMAS.values())[number],
        "n_predict": TOKENS,
        "seed": number,
        "temperature": 1.0,
        "top_k": 40,
        "top_p": 1.0,
        "min_p": 0.0,
        "cache_prompt": False,
    }
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return int(json.load(response)["tokens_predicted"])


def rate(run: Run, numbers: Sequence[int], streams: int) -> float:
    """Return tokens per second of prompts in groups of this many streams."""
    start = time.perf_counter()
    tokens = sum(run(numbers[first : first + streams]) for first in range(0, len(numbers), streams))
    return tokens / (time.perf_counter() - start)


def compared_with_llama(engine: AsyncEngine, url: str, numbers: Sequence[int], streams: int, rounds: int) -> str:
    """Return a line: tokens per second of this many streams, ours and llama.cpp's server's."""
    with ThreadPoolExecutor(streams) as pool:
        found = [
            (
                rate(lambda part: sum(lengths_of(engine, part, SCHEMAS)), numbers, streams),
                rate(lambda part: sum(pool.map(lambda number: from_llama(url, number), part)), numbers, streams),
            )
            for _ in range(rounds)
        ]
    ours, theirs = (statistics.median(side) for side in zip(*found, strict=True))
    ratio = statistics.median(one / other for one, other in found)
    return f"{streams} streams: {ours:.0f} / llama.cpp {theirs:.0f} tokens/s; ratio {ratio:.2f}"


def gaps(engine: AsyncEngine, length: int) -> list[float]:
    """Return the seconds between the tokens of a free stream."""
    times = [time.perf_counter() for _ in engine.stream_infer("Tell me a story.", config(length, 0, None))]
    return [later - earlier for earlier, later in pairwise(times)]


def during_compilation(engine: AsyncEngine, rounds: int) -> str:
    """Return a line: what a free stream waits for its tokens while an expression is compiled, and alone."""
    alone, meanwhile = [], []
    for number in range(rounds):
        for _ in range(STREAMS_COMPARED):
            alone += gaps(engine, TOKENS)
        members = {f"{number} {i}": {"type": "string", "pattern": HOSTILE.format(i % 10)} for i in range(60)}
        schema = {"type": "object", "properties": members, "required": list(members)}
        with ThreadPoolExecutor(1) as pool:
            compiled = pool.submit(refused, engine, schema)
            for _ in range(STREAMS_COMPARED):
                if not compiled.done():
                    meanwhile += gaps(engine, TOKENS)
    p95 = [statistics.quantiles(each, n=20)[-1] * 1000 for each in (meanwhile, alone)]
    return f"between tokens, p95, compiling / alone: {p95[0]:.1f} ms / {p95[1]:.1f} ms, ratio {p95[0] / p95[1]:.2f}"


def refused(engine: AsyncEngine, schema: dict[str, Any]) -> None:
    """Ask for what takes too long to compile."""
    with contextlib.suppress(ValueError):
        engine("Hello", config(1, 0, schema))


def usable_by(url: str, numbers: Sequence[int]) -> list[int]:
    """Return the prompts whose schemas llama.cpp's server takes."""
    found = []
    for number in numbers:
        try:
            from_llama(url, number)
        except urllib.error.HTTPError:
            continue
        found.append(number)
    return found


def main() -> None:
    """Measure, and print a line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weight-bits", type=int, default=8, choices=(4, 8, 16))
    parser.add_argument("--schemas", type=int, default=len(SCHEMAS), help="how many of them")
    parser.add_argument("--compile", action="store_true", help="a free stream while another's format is compiled")
    parser.add_argument("--llama", action="store_true", help="compared with llama.cpp's server (`make peers`)")
    arguments = parser.parse_args()
    model = locate_model(arguments.model) if arguments.model else default_model_dir()
    numbers = range(arguments.schemas)
    settings = TurbomindEngineConfig(
        cache_max_entry_count=256,
        enable_prefix_caching=False,
        weight_bits=arguments.weight_bits,
    )
    with pipeline(str(model), backend_config=settings) as engine:
        engine("Hello", config(8, 0, None))
        print(first_tokens(engine), flush=True)
        print(one_stream(engine, numbers), flush=True)
        if arguments.compile:
            print(during_compilation(engine, arguments.rounds), flush=True)
        if arguments.llama and (reason := why_missing("llama.cpp", model, arguments.weight_bits)):
            print(f"llama.cpp: skipped, {reason}")
        elif arguments.llama:
            for streams in (1, 8):
                with serving(gguf(model, arguments.weight_bits), streams, SLOT) as url:
                    usable = usable_by(url, numbers)
                    print(f"llama.cpp takes {len(usable)} of {len(numbers)} schemas")
                    print(compared_with_llama(engine, url, usable, streams, arguments.rounds), flush=True)
