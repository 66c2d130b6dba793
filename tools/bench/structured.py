"""Structured output compared with plain output: ``python -m tools.bench structured [MODEL]``.

16 streams under a response format alongside 16 without, or with ``--calls`` one stream under each schema of a file.
Every stream has its own prompt. A format may end a response early; its twin without a format then has as many
tokens, so that both sides compute the same. They run in turn, so that what else the machine does falls on both.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.paths import default_model_dir
from tools.bench.workload import EVERY_TOKEN

Schema = dict[str, Any]
STREAMS = 16
TOKENS = 96


def rows_of(row: Schema) -> Schema:
    """Return the schema of a list that does not end before the response does."""
    return {"type": "array", "items": row, "minItems": 50}


def record(**members: Schema) -> Schema:
    """Return the schema of an object that has these members and no others."""
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def text(max_length: int) -> Schema:
    """Return the schema of a string of bounded length."""
    return {"type": "string", "maxLength": max_length}


PERSON = record(first=text(20), last=text(20))
NUMBER, INTEGER = {"type": "number"}, {"type": "integer"}
SCHEMAS: dict[str, Schema] = {
    "three members": rows_of(record(name={"type": "string"}, age=INTEGER, ok={"type": "boolean"})),
    "strings of bounded length": rows_of(record(**{f"field {i}": text(8 + 2 * i) for i in range(6)})),
    "a long string of bounded length": rows_of(record(body=text(100))),
    "enumerations and numbers": rows_of(record(kind={"enum": ["cat", "dog", "bird"]}, weight=NUMBER, tag=text(8))),
    "nested records": rows_of(record(who=PERSON, at=rows_of(record(x=INTEGER)))),
    "patterns": rows_of(record(id={"type": "string", "pattern": "^[a-z]{3,12}-[0-9]{2,8}$"}, note=text(16))),
}
FORMATS: dict[str, dict[str, Any]] = {
    **{name: {"type": "json_schema", "json_schema": {"name": "bench", "schema": s}} for name, s in SCHEMAS.items()},
    "any JSON": {"type": "json_object"},
    "regular expression": {"type": "regex_schema", "regex_schema": r"([A-Z][a-z]{1,12} ){200}"},
}


def run(
    engine: AsyncEngine, response_format: dict[str, Any] | None, seed: int, lengths: Sequence[int]
) -> tuple[float, list[int]]:
    """Return the tokens per second of 16 streams, and how many each has; without a format, those of `lengths`."""
    prompts = [f"Tell me about the number {i + STREAMS * seed}." for i in range(STREAMS)]
    configs = [
        GenerationConfig(
            max_new_tokens=length,
            min_new_tokens=length if response_format is None else None,
            do_sample=True,
            top_k=40,
            random_seed=seed,
            response_format=response_format,
        )
        for length in lengths
    ]
    start = time.perf_counter()
    found = [response.generate_token_len for response in engine(prompts, configs)]
    return sum(found) / (time.perf_counter() - start), found


def rounds(engine: AsyncEngine, response_format: dict[str, Any], count: int) -> Iterator[tuple[float, float]]:
    """Yield tokens per second, under the format and without."""
    for seed in range(count):
        structured, lengths = run(engine, response_format, seed, [TOKENS] * STREAMS)
        yield structured, run(engine, None, seed, [max(1, length) for length in lengths])[0]


def first_token(engine: AsyncEngine, prompt: str, response_format: dict[str, Any] | None) -> float:
    """Return the seconds to the first token."""
    start = time.perf_counter()
    next(engine.stream_infer([prompt], GenerationConfig(max_new_tokens=1, response_format=response_format)))
    return time.perf_counter() - start


def one_stream(engine: AsyncEngine, prompt: str, **fields: Any) -> tuple[float, int]:
    """Return the seconds of a response and its tokens."""
    start = time.perf_counter()
    response = engine(prompt, GenerationConfig(**fields))
    return time.perf_counter() - start, response.generate_token_len


def print_calls(path: Path, model: str, config: TurbomindEngineConfig) -> None:
    """Print medians over the schemas of a file of ``[name, schema]`` lines, each with a prompt that shows it."""
    first, speed = [], []
    undrafted = dataclasses.replace(config, speculative_config="none")
    with pipeline(model, backend_config=config) as engine, pipeline(model, backend_config=undrafted) as plain:
        one_stream(engine, "Hello", max_new_tokens=TOKENS, response_format={"type": "json_object"})
        one_stream(plain, "Hello", max_new_tokens=TOKENS)
        for name, schema in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            response_format = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
            prompt = f"Call {name}, whose arguments are {json.dumps(schema)}"
            other = prompt.replace("Call", "Tell me of", 1)
            first.append(first_token(engine, prompt, response_format) / first_token(engine, other, None))
            seconds, length = one_stream(engine, prompt, max_new_tokens=TOKENS, response_format=response_format)
            one_stream(plain, prompt, max_new_tokens=1)
            speed.append(one_stream(plain, prompt, max_new_tokens=length, min_new_tokens=length)[0] / seconds)
    print(f"first token, unseen schema / plain: {statistics.median(first):.2f}")
    print(f"tokens/s of one stream, schema / plain without drafts: {statistics.median(speed):.2f}")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weight-bits", type=int, default=None)
    parser.add_argument("--only", default=None, help="a format by name")
    parser.add_argument("--calls", type=Path, help="a file of [name, schema] lines: one stream under each")
    arguments = parser.parse_args()
    config = TurbomindEngineConfig(
        cache_max_entry_count=256, weight_bits=arguments.weight_bits, grammar_compile_seconds=60, **EVERY_TOKEN
    )
    model = arguments.model or str(default_model_dir())
    if arguments.calls:
        print_calls(arguments.calls, model, config)
        return
    with pipeline(model, backend_config=config) as engine:
        for response_format in [None, *FORMATS.values()]:  # compiled beforehand; what may come is not known yet
            engine("Hello", GenerationConfig(max_new_tokens=1, response_format=response_format))
        print("| format | structured, tokens/s | plain, tokens/s | structured / plain, each round |")
        print("| --- | --- | --- | --- |")
        for name, response_format in FORMATS.items():
            if arguments.only not in (None, name):
                continue
            found = list(rounds(engine, response_format, arguments.rounds))
            ratios = ", ".join(f"{structured / free:.2f}" for structured, free in found)
            medians = [f"{statistics.median(side):.0f}" for side in zip(*found, strict=True)]
            print(f"| {name} | {medians[0]} | {medians[1]} | {ratios} |", flush=True)
