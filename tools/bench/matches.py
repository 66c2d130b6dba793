"""Workloads of ``tools.bench peers``, and the engines that run each.

Every engine gets the same model, as many threads, the same numbers of tokens and greedy decoding, and no engine keeps a
prompt for later. Ours and OpenVINO's responses are timed token by token; llama.cpp is timed by its own programs. The
default model is read from its directory by us; a GGUF file of the user's is the same file for every side. A peer that
cannot run a file is left out by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lmdeploy.capacity.sizes import Sizes
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tools.bench.inprocess import InProcess, in_process
from tools.bench.over_http import run_over_http
from tools.bench.peers import llama_cpp
from tools.bench.peers.genai import genai
from tools.bench.peers.paths import (
    GGUF_TYPES,
    IK_LLAMA,
    gguf,
    llama_tool,
    openvino_python,
)
from tools.bench.roofline import Limits, engine_cost, head_bytes
from tools.bench.server import running_server
from tools.bench.stats import Record, Summary, median, steady_rate
from tools.bench.targets import OURS
from tools.bench.turns import take_turns
from tools.bench.workload import EVERY_TOKEN, GREEDY, Lengths, TokenRequest, random_requests, token_requests

PARTS = ("decode", "streams", "prefill", "http", "cache")
MAX_STREAMS = 32
PREFILLS = 2  # prompts of a measurement
HTTP_STREAMS = 16
SMALL_CACHE = 0.05  # of the free memory; more than these workloads fill
# The full cache: long responses, and room for three of the 16-bit sequences of mean length, 640 tokens.
FULL_REQUESTS, FULL_BLOCKS = 20, 30
FULL_PROMPTS, FULL_OUTPUTS = Lengths(128, 384), Lengths(256, 512)

Answer = Callable[[Sequence[TokenRequest], int], list[Record]]
Sides = dict[str, Callable[[], float]]
Rates = dict[str, list[float]]
# A match's name, the rates of its sides round by round, and our share of the machine's limit.
Played = tuple[str, Rates, float | None]


@dataclass(frozen=True)
class Match:
    """One workload of the engines alone."""

    part: str  # ``decode``, ``streams`` or ``prefill``
    bits: int  # of the weights; 0: several kinds
    # Sequences at a time, and their tokens
    streams: int
    prompt_len: int
    output_len: int

    def __str__(self) -> str:
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        workload = f"prefill of {self.prompt_len}" if self.part == "prefill" else f"decode, {streams}"
        return f"{workload}, {self.bits}-bit" if self.bits else workload

    def rate(self, response: Answer) -> float:
        """Return an engine's tokens/s: of prompts up to the first token, or generated while all streams generate."""
        if self.part == "prefill":
            records = response(token_requests(PREFILLS, self.prompt_len, 1, seed=1), 1)
            return PREFILLS * self.prompt_len / sum(record.first_token_latency for record in records)
        return steady_rate(
            response(token_requests(self.streams, self.prompt_len, self.output_len, seed=1), self.streams)
        )

    def llama_rate(self, model: Path, attention: str) -> float:
        """Return the tokens/s of llama.cpp, with this kind of attention."""
        if self.part == "prefill":
            return llama_cpp.prefill_rate(model, self.prompt_len, PREFILLS, attention)
        if self.streams == 1:
            return llama_cpp.decode_rate(model, self.prompt_len, self.output_len, attention)
        return llama_cpp.streams_rate(model, self.streams, self.prompt_len, self.output_len, attention)


MATCHES = (
    *(Match("decode", bits, 1, 64, 96) for bits in (4, 8, 16)),
    *(Match("streams", 4, streams, 64, 64) for streams in (8, MAX_STREAMS)),
    *(Match("prefill", bits, 1, length, 1) for bits in (4, 8) for length in (512, 1024)),
    Match("prefill", 16, 1, 512, 1),
)
FILE_MATCHES = (
    Match("decode", 0, 1, 64, 96),
    Match("streams", 0, 8, 64, 64),
    Match("prefill", 0, 1, 512, 1),
)


@dataclass(frozen=True)
class Rounds:
    """How often each side is measured, and what is waited for before it is."""

    count: int
    pause: Callable[[], None]

    def play(self, title: str, sides: Sides, describe: str = "{:.1f} tokens/s") -> Rates:
        """Have the sides take turns."""
        print(f"-- {title}", flush=True)
        return take_turns(sides, self.count, describe.format, self.pause)


def engine_config(bits: int) -> TurbomindEngineConfig:
    """Return our engine's config with weights of this many bits."""
    rounded = bits if bits < 16 else None
    return TurbomindEngineConfig(
        dtype="bfloat16",
        weight_bits=rounded,
        max_batch_size=MAX_STREAMS,
        cache_max_entry_count=SMALL_CACHE,
        **EVERY_TOKEN,
    )


def play(
    parts: Sequence[str], files: Sequence[Path], model_path: Path, rounds: Rounds, limits: Limits
) -> Iterator[Played]:
    """Play the matches of some of ``PARTS``, and those of GGUF files of the user's."""
    for file in files:
        yield from _user_file(file, rounds)
    matches = [match for match in MATCHES if match.part in parts]
    for bits in GGUF_TYPES:
        if chosen := [match for match in matches if match.bits == bits]:
            yield from _default_model(chosen, bits, model_path, rounds, limits)
    if "http" in parts:
        yield from over_http(model_path, rounds)
    if "cache" in parts:
        yield from full_cache(model_path, rounds)


def _default_model(
    matches: Sequence[Match], bits: int, model_path: Path, rounds: Rounds, limits: Limits
) -> Iterator[Played]:
    config = engine_config(bits)
    with _engines(model_path, gguf(model_path, bits), GGUF_TYPES[bits], config) as (engine, answers):
        cost = engine_cost(Sizes.read(model_path), config, engine.spec.head_dim)
        for match in matches:
            llama_bits = 4 if match.part == "prefill" else bits  # it reads prompts fastest with 4
            file = gguf(model_path, llama_bits)
            rates = _play(str(match), match, answers, file, GGUF_TYPES[llama_bits], rounds)
            share, rate = None, median(rates[OURS])
            if match.part == "decode":
                share = cost.bandwidth_share(limits.bandwidth, rate, match.prompt_len + match.output_len / 2)
            elif match.part == "prefill" and bits < 16:
                share = cost.row_operations * rate / limits.int8
            yield str(match), rates, share


def _user_file(file: Path, rounds: Rounds) -> Iterator[Played]:
    with _engines(file, file, "GGUF", replace(engine_config(16), max_prefill_token_num=2048)) as (_, answers):
        for match in FILE_MATCHES:
            title = f"{file.stem}: {match}"
            yield title, _play(title, match, answers, file, "GGUF", rounds), None


@contextmanager
def _engines(
    model: Path, file: Path, kind: str, config: TurbomindEngineConfig
) -> Iterator[tuple[InProcess, dict[str, Answer]]]:
    """Open ours on a model, and OpenVINO on a GGUF file of it."""
    with ExitStack() as stack:
        engine = stack.enter_context(in_process(str(model), config))
        answers: dict[str, Answer] = {OURS: lambda requests, streams: engine.generate(requests, streams, GREEDY)}
        if openvino_python().exists() and file.exists():
            answers[f"openvino {kind}"] = stack.enter_context(genai(file, MAX_STREAMS)).generate
        yield engine, answers


def _play(title: str, match: Match, answers: Mapping[str, Answer], file: Path, kind: str, rounds: Rounds) -> Rates:
    sides: Sides = {}
    for side, answer in answers.items():
        try:
            answer(token_requests(match.streams, match.prompt_len, 2, seed=2), match.streams)  # warms up
        except RuntimeError as error:
            if side == OURS:
                raise
            print(f"-- {title}: {side} is left out: {str(error).strip().splitlines()[-1]}", flush=True)
        else:
            sides[side] = partial(match.rate, answer)
    if llama_tool("llama-bench").exists() and file.exists():
        sides[f"llama.cpp {kind}"] = _llama_side(match, file)
    if match.streams == 1 and llama_tool("llama-bench", IK_LLAMA).exists() and file.exists():
        lengths = (match.prompt_len, 0) if match.part == "prefill" else (0, match.output_len)
        sides[f"ik_llama.cpp {kind}"] = partial(llama_cpp.ik_rate, file, *lengths)
    return rounds.play(title, sides)


def _llama_side(match: Match, file: Path) -> Callable[[], float]:
    """Return llama.cpp's side: its first run finds out which attention is faster, the later ones have that one."""
    faster: list[str] = []

    def run() -> float:
        rates = {kind: match.llama_rate(file, kind) for kind in faster or llama_cpp.ATTENTION}
        faster[:] = [max(rates, key=lambda kind: rates[kind])]
        return rates[faster[0]]

    return run


def over_http(model_path: Path, rounds: Rounds) -> Iterator[Played]:
    """Yield the tokens/s of whole requests through HTTP, 16 at a time, of gateway and Triton and of llama-server."""
    requests = random_requests(2 * HTTP_STREAMS, Lengths(32, 256), Lengths(32, 192), seed=1)
    tokenizer = Tokenizer(str(model_path))
    max_tokens = max(len(tokenizer.encode(request.prompt)) + request.output_len for request in requests)
    file, title = gguf(model_path, 4), f"HTTP, {HTTP_STREAMS} streams, 4-bit"
    with ExitStack() as stack:
        config = replace(engine_config(4), max_batch_size=HTTP_STREAMS)
        urls = {OURS: stack.enter_context(running_server(str(model_path), config))}
        if llama_tool("llama-server").exists() and file.exists():
            try:
                serving = llama_cpp.serving(file, HTTP_STREAMS, max_tokens)
                urls["llama-server Q4_0"] = stack.enter_context(serving)
            except RuntimeError as error:
                print(f"-- llama-server is left out: {error}", flush=True)
        for url in urls.values():
            run_over_http(url, requests[:HTTP_STREAMS], HTTP_STREAMS, GREEDY)  # warm up
        print(f"-- {title}", flush=True)
        sides = {side: partial(run_over_http, url, requests, HTTP_STREAMS, GREEDY) for side, url in urls.items()}
        runs = take_turns(sides, rounds.count, _served_run, rounds.pause)
    yield title, {side: [run.token_throughput for run in found] for side, found in runs.items()}, None


def _served_run(run: Summary) -> str:
    return f"{run.token_throughput:.1f} tokens/s, first tokens after {run.first_token_latency['p50']:.2f} s"


def full_cache(model_path: Path, rounds: Rounds) -> Iterator[Played]:
    """Yield the requests a minute that a cache of fixed memory allows with values of 16, 8 and 4 bits.

    All requests wait at once for the room that ``FULL_BLOCKS`` blocks of 16-bit values take; weights have
    8 bits. Where the room ends a sequence waits, or gives its blocks back and is computed again.
    """
    requests = random_requests(FULL_REQUESTS, FULL_PROMPTS, FULL_OUTPUTS, seed=1)
    base = engine_config(8)
    head_dim = resolve(model_path).spec.head_dim
    with ExitStack() as stack:

        def side(policy: int) -> Callable[[], float]:
            blocks = FULL_BLOCKS * head_bytes(head_dim, 16) // head_bytes(head_dim, policy or 16)
            config = replace(base, quant_policy=policy, max_batch_size=FULL_REQUESTS, cache_max_entry_count=blocks)
            engine = stack.enter_context(in_process(str(model_path), config))
            return lambda: engine.run(requests, FULL_REQUESTS, GREEDY).requests_per_minute

        sides = {f"{bits}-bit cache": side(policy) for bits, policy in ((16, 0), (8, 8), (4, 4))}
        rates = rounds.play("full cache", sides, "{:.1f} requests a minute")
    unrounded = rates.pop("16-bit cache")
    for name, values in rates.items():
        yield f"full cache, {name}", {OURS: values, "16-bit cache": unrounded}, None
