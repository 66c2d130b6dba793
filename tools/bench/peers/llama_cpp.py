"""llama.cpp and ik_llama.cpp: their own benchmark programs, and the server.

It gets as many threads as our engine. Which kind of attention is faster, with its flash kernel or without, depends on
the processor and the workload.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmdeploy.serve.ports import free_ports
from tools.bench.peers.paths import IK_LLAMA, llama_tool, thread_count
from tools.bench.server import running

_LIMIT = 600  # seconds for one run of a program
_SLOT_STEP = 64
# With its flash kernel and without.
ATTENTION = ("on", "off")
# Its name for keys and values of this many bits.
CACHE_TYPES = {16: "f16", 8: "q8_0", 4: "q4_0"}


def decode_rate(model: Path, prompt_len: int, output_len: int, attention: str) -> float:
    """Return generated tokens/s of one stream after a prompt, the prompt's time excluded (``llama-bench``)."""
    return _llama_bench(model, attention, {"-p": 0, "-n": output_len, "-d": prompt_len, "-r": 1})


def prefill_rate(model: Path, prompt_len: int, prompts: int, attention: str) -> float:
    """Return prompt tokens/s of this many prompts, one after another (``llama-bench``)."""
    return _llama_bench(model, attention, {"-p": prompt_len, "-n": 0, "-d": 0, "-r": prompts})


def streams_rate(model: Path, streams: int, prompt_len: int, output_len: int, attention: str) -> float:
    """Return generated tokens/s of parallel streams together, their prompts excluded (``llama-batched-bench``)."""
    return _batched(model, streams, prompt_len, output_len, "-fa", attention)[1]


def context_rates(model: Path, prompt_len: int, output_len: int, cache_bits: int) -> tuple[float, float]:
    """Return the tokens/s of one long prompt and of what is generated after it, with a cache of this many bits.

    Its flash kernel is on: with it alone values may be rounded, and long prompts need less memory.
    """
    cache = CACHE_TYPES[cache_bits]
    return _batched(model, 1, prompt_len, output_len, "-fa", "on", "-ctk", cache, "-ctv", cache)


def _batched(model: Path, streams: int, prompt_len: int, output_len: int, *options: str) -> tuple[float, float]:
    sizes = {"-npp": prompt_len, "-ntg": output_len, "-npl": streams, "-c": streams * (prompt_len + output_len)}
    command = [str(llama_tool("llama-batched-bench")), "-m", str(model), "-t", str(thread_count())]
    command += ["--output-format", "jsonl", *(text for flag, size in sizes.items() for text in (flag, str(size)))]
    row = _rows([*command, *options])[0]
    return float(row.get("speed_pp", 0.0)), float(row["speed_tg"])


def slot_tokens(max_tokens: int) -> int:
    """Return the size of a slot that holds requests of this many tokens, prompt and response."""
    return -(-(max_tokens + 1) // _SLOT_STEP) * _SLOT_STEP


@contextmanager
def serving(
    model: Path, slots: int, max_tokens: int, *, keeps_prompts: bool = False, cache_type: str = "f16"
) -> Iterator[str]:
    """Run ``llama-server`` for as long as the block lasts; raise `RuntimeError` if it did not start.

    Yields its URL, without ``/v1``. ``model``: a GGUF file. ``slots``: requests it answers at a time. ``max_tokens``:
    most tokens of a request, prompt and response. ``keeps_prompts``: whether it keeps prompts for later requests, with
    its own defaults. ``cache_type``: of keys and values.
    """
    (port,) = free_ports(1)
    command = [
        *(str(llama_tool("llama-server")), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("-t", str(thread_count()), "-np", str(slots), "-c", str(slots * slot_tokens(max_tokens))),
        *("-fa", "on", "--no-webui", "-ctk", cache_type, "-ctv", cache_type),
        *(() if keeps_prompts else ("--no-cache-prompt", "--cache-ram", "0")),
    ]
    with running(command, f"http://127.0.0.1:{port}") as url:
        yield url


def _llama_bench(model: Path, attention: str, sizes: Mapping[str, int]) -> float:
    command = [str(llama_tool("llama-bench")), "-m", str(model), "-t", str(thread_count()), "-o", "jsonl"]
    command += [text for flag, size in sizes.items() for text in (flag, str(size))]
    return float(_rows([*command, "-fa", attention])[0]["avg_ts"])


def ik_rate(model: Path, prompt_len: int, output_len: int) -> float:
    """Return the tokens/s of ik_llama.cpp, with weights as stored or repacked, whichever is faster.

    Either length is 0: a prompt is measured, or tokens that follow none.
    """
    command = [str(llama_tool("llama-bench", IK_LLAMA)), "-m", str(model), "-t", str(thread_count()), "-r", "1"]
    printed = _run([*command, "-p", str(prompt_len), "-n", str(output_len), "-rtr", "0,1", "-o", "json"])
    return max(float(row["avg_ts"]) for row in json.loads(printed[printed.index("[") :]))


def _rows(command: Sequence[str]) -> list[dict[str, Any]]:
    """Run a program and return the JSON objects it prints, one a line, between other lines."""
    return [json.loads(line) for line in _run(command).splitlines() if line.startswith("{")]


def _run(command: Sequence[str]) -> str:
    """Run a program and return what it prints; raise `RuntimeError` if it failed, ran too long or has no results."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} ran longer than {_LIMIT} s") from None
    if done.returncode != 0 or "{" not in done.stdout:
        raise RuntimeError(f"{name} ended with {done.returncode} and no results:\n{done.stderr[-2000:]}")
    return done.stdout
