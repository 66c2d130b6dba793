"""Workloads of ``tools.bench peers``, and the engines that run each.

Every engine gets the same model, as many threads, the same numbers of tokens and greedy decoding, and no engine keeps a
prompt for later, but in an agent's day. Ours and OpenVINO's responses are timed token by token; llama.cpp is timed by
its own programs. The default model is read from its directory by us; larger ones are one GGUF file of random weights
for every side, written for its matches and removed after them. A peer that cannot run a file is left out by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lmdeploy.capacity.sizes import Sizes
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tools.bench.conversations import AGENT_TURNS, SESSION, Conversations, LlamaServer, Measured, Ours, agent_times
from tools.bench.inprocess import InProcess, in_process
from tools.bench.over_http import run_over_http
from tools.bench.peers import llama_cpp, vllm
from tools.bench.peers.genai import genai
from tools.bench.peers.paths import (
    GGUF_TYPES,
    IK_LLAMA,
    gguf,
    llama_tool,
    missing_program,
    openvino_python,
    vllm_python,
)
from tools.bench.random_gguf import NAMES, file_cost, random_file
from tools.bench.roofline import Limits, engine_cost, head_bytes
from tools.bench.server import running_server
from tools.bench.shapes import SHAPES
from tools.bench.stats import Record, Summary, median, steady_rate
from tools.bench.targets import OURS
from tools.bench.turns import take_turns
from tools.bench.workload import EVERY_TOKEN, GREEDY, Lengths, Request, TokenRequest, random_requests, token_requests

PARTS = ("decode", "streams", "prefill", "http", "cache")
LARGER_PARTS = ("large", "moe", "long", "agent")  # only on request, since they take an hour and 5 GB of disk
CONTEXTS = (4000, 16000, 32000)  # tokens
CACHE_BITS = (16, 8, 4)
MAX_STREAMS = 32
PREFILLS = 2  # prompts of a measurement
HTTP_STREAMS = 16
SMALL_CACHE = 0.05  # of the free memory; more than these workloads fill
# The full cache: long responses, and room for three of the 16-bit sequences of mean length, 640 tokens.
FULL_REQUESTS, FULL_BLOCKS = 20, 30
FULL_PROMPTS, FULL_OUTPUTS = Lengths(128, 384), Lengths(256, 512)
_AFTER_CONTEXT = 33  # tokens
_OPENVINO_CACHE_BITS = 8  # its own choice on processors

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
    prompts: int = PREFILLS  # of a measurement, where prompts are measured

    def __str__(self) -> str:
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        workload = f"prefill of {self.prompt_len}" if self.part == "prefill" else f"decode, {streams}"
        return f"{workload}, {self.bits}-bit" if self.bits else workload

    def rate(self, response: Answer) -> float:
        """Return an engine's tokens/s: of prompts up to the first token, or generated while all streams generate."""
        if self.part == "prefill":
            records = response(token_requests(self.prompts, self.prompt_len, 1, seed=1), 1)
            return self.prompts * self.prompt_len / sum(record.first_token_latency for record in records)
        return steady_rate(
            response(token_requests(self.streams, self.prompt_len, self.output_len, seed=1), self.streams)
        )

    def llama_rate(self, model: Path, attention: str) -> float:
        """Return the tokens/s of llama.cpp, with this kind of attention."""
        if self.part == "prefill":
            return llama_cpp.prefill_rate(model, self.prompt_len, self.prompts, attention)
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
LARGER_MODELS = {
    "large": tuple((name, bits) for name in ("llama-3.2-1b", "qwen3-4b") for bits in (4, 8)),
    "moe": (("qwen3-30b-a3b", 4),),
    "long": (("llama-3.2-1b", 4),),
    "agent": (("llama-3.2-1b", 4),),
}


def larger_matches(bits: int) -> list[Match]:
    """Return the matches of a larger model."""
    streams = [Match("streams", bits, streams, 64, 48) for streams in (8, MAX_STREAMS)]
    return [Match("decode", bits, 1, 64, 64), *streams, Match("prefill", bits, 1, 1024, 1, prompts=1)]


@dataclass(frozen=True)
class Choice:
    """Parts of ``PARTS`` and ``LARGER_PARTS``; of the latter the models, and of ``long`` its lengths and caches.

    ``files``: GGUF files of the user's.
    """

    parts: Sequence[str]
    models: Sequence[str] = NAMES
    contexts: Sequence[int] = CONTEXTS
    cache_bits: Sequence[int] = CACHE_BITS
    files: Sequence[Path] = ()


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


def play(choice: Choice, model_path: Path, rounds: Rounds, limits: Limits) -> Iterator[Played]:
    """Play the matches of a choice."""
    for file in choice.files:
        yield from _larger_model(file.stem, FILE_MATCHES, "GGUF", file, rounds, None)
    matches = [match for match in MATCHES if match.part in choice.parts]
    for bits in GGUF_TYPES:
        if chosen := [match for match in matches if match.bits == bits]:
            yield from _default_model(chosen, bits, model_path, rounds, limits)
    if "http" in choice.parts:
        yield from over_http(model_path, rounds)
    if "cache" in choice.parts:
        yield from full_cache(model_path, rounds)
    for part in [part for part in LARGER_PARTS if part in choice.parts]:
        for name, bits in LARGER_MODELS[part]:
            if name in choice.models:
                with random_file(name, bits) as file:
                    if part == "long":
                        yield from _long(name, bits, file, choice, rounds)
                    elif part == "agent":
                        yield from _agent(name, bits, file, rounds)
                    else:
                        speed = limits.bandwidth / file_cost(SHAPES[name], bits).weight_bytes()
                        yield from _larger_model(name, larger_matches(bits), GGUF_TYPES[bits], file, rounds, speed)


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


def _larger_model(
    name: str,
    matches: Sequence[Match],
    kind: str,
    file: Path,
    rounds: Rounds,
    # Tokens/s of one stream at the machine's bandwidth; None: unknown
    limit: float | None,
) -> Iterator[Played]:
    with _engines(file, file, kind, replace(engine_config(16), max_prefill_token_num=2048)) as (_, answers):
        for match in matches:
            rates = _play(f"{name}: {match}", match, answers, file, kind, rounds)
            share = median(rates[OURS]) / limit if limit is not None and match.part == "decode" else None
            yield f"{name}: {match}", rates, share


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


def _long(name: str, bits: int, file: Path, choice: Choice, rounds: Rounds) -> Iterator[Played]:
    """Long prompts, and what is generated after them; both rates are of one run."""
    kind = GGUF_TYPES[bits]
    for cache_bits in choice.cache_bits:
        config = replace(
            engine_config(16),
            quant_policy=0 if cache_bits == 16 else cache_bits,
            max_batch_size=1,
            session_len=max(choice.contexts) + 2 * _AFTER_CONTEXT,
            cache_max_entry_count=0.2,
        )
        with _engines(file, file, kind, config) as (_, answers):
            if cache_bits != _OPENVINO_CACHE_BITS:
                answers = {OURS: answers[OURS]}
            for length in choice.contexts:
                sides = {side: partial(_context_rates, answer, length) for side, answer in answers.items()}
                if llama_tool("llama-batched-bench").exists():
                    sides[f"llama.cpp {kind}"] = partial(
                        llama_cpp.context_rates, file, length, _AFTER_CONTEXT - 1, cache_bits
                    )
                print(f"-- {name}: context of {length}, {cache_bits}-bit cache", flush=True)
                found = take_turns(sides, rounds.count, _pair, rounds.pause)
                for index, what in enumerate(("prompt of", "decode after")):
                    title = f"{name}: {what} {length}, {bits}-bit, {cache_bits}-bit cache"
                    yield title, {side: [pair[index] for pair in pairs] for side, pairs in found.items()}, None


def _pair(rates: tuple[float, float]) -> str:
    return f"prompt {rates[0]:.0f}, then {rates[1]:.1f} tokens/s"


def _context_rates(answer: Answer, length: int) -> tuple[float, float]:
    """Return the tokens/s of a prompt of this length and of what is generated after it."""
    (record,) = answer(token_requests(1, length, _AFTER_CONTEXT, seed=1), 1)
    return length / record.first_token_latency, 1 / record.seconds_a_token


def _agent(name: str, bits: int, file: Path, rounds: Rounds) -> Iterator[Played]:
    """An agent's day: 20 turns over a growing conversation with results of tools, on engines that keep prompts."""
    chat = Conversations(Tokenizer(str(file)))
    config = TurbomindEngineConfig(dtype="bfloat16", session_len=SESSION, speculative_config="none")
    with ExitStack() as stack:
        engines: dict[str, Measured] = {OURS: Ours(stack.enter_context(in_process(str(file), config)))}
        if llama_tool("llama-server").exists():
            server = llama_cpp.serving(file, 1, SESSION, keeps_prompts=True)
            engines[f"llama-server {GGUF_TYPES[bits]}"] = LlamaServer(stack.enter_context(server))
        sides: Sides = {side: partial(_first_tokens, engine, chat) for side, engine in engines.items()}
        title = f"{name}: agent's day, {bits}-bit"
        yield title, rounds.play(title, sides, "{:.2f} first tokens/s"), None


def _first_tokens(measured: Measured, chat: Conversations) -> float:
    return AGENT_TURNS / sum(agent_times(measured, chat))


def over_http(model_path: Path, rounds: Rounds) -> Iterator[Played]:
    """Yield the tokens/s of whole requests through HTTP, 16 at a time: gateway and Triton, llama-server and vLLM.

    llama-server has weights of 4 bits, vLLM of 16; of these, how soon the first tokens come is measured too.
    """
    requests = random_requests(2 * HTTP_STREAMS, Lengths(32, 256), Lengths(32, 192), seed=1)
    tokenizer = Tokenizer(str(model_path))
    max_tokens = max(len(tokenizer.encode(request.prompt)) + request.output_len for request in requests)
    file, peer = gguf(model_path, 4), {}
    if llama_tool("llama-server").exists() and file.exists():
        peer = {"llama-server Q4_0": lambda: llama_cpp.serving(file, HTTP_STREAMS, max_tokens)}
    runs = _served(model_path, 4, peer, requests, rounds)
    yield f"HTTP, {HTTP_STREAMS} streams, 4-bit", _throughputs(runs), None
    if missing_program(vllm_python()) is None:
        peer = {"vLLM bfloat16": lambda: vllm.serving(model_path, HTTP_STREAMS, max_tokens)}
        runs = _served(model_path, 16, peer, requests, rounds)
        name = f"HTTP, {HTTP_STREAMS} streams, 16-bit"
        yield name, _throughputs(runs), None
        firsts = {side: [1 / run.first_token_latency["p50"] for run in rounds] for side, rounds in runs.items()}
        yield f"{name}: first tokens", firsts, None


def _throughputs(runs: Mapping[str, Sequence[Summary]]) -> Rates:
    return {side: [run.token_throughput for run in rounds] for side, rounds in runs.items()}


def _served(
    model_path: Path,
    bits: int,
    peers: Mapping[str, Callable[[], AbstractContextManager[str]]],
    requests: Sequence[Request],
    rounds: Rounds,
) -> dict[str, list[Summary]]:
    """Return the rounds of our server and of others; one that does not start is left out by name."""
    with ExitStack() as stack:
        config = replace(engine_config(bits), max_batch_size=HTTP_STREAMS)
        urls = {OURS: stack.enter_context(running_server(str(model_path), config))}
        for side, serving in peers.items():
            try:
                urls[side] = stack.enter_context(serving())
            except RuntimeError as error:
                print(f"-- {side} is left out: {error}", flush=True)
        for url in urls.values():
            run_over_http(url, requests[:HTTP_STREAMS], HTTP_STREAMS, GREEDY)  # warm up
        print(f"-- HTTP, {HTTP_STREAMS} streams, {bits}-bit", flush=True)
        sides = {side: partial(run_over_http, url, requests, HTTP_STREAMS, GREEDY) for side, url in urls.items()}
        return take_turns(sides, rounds.count, _served_run, rounds.pause)


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
