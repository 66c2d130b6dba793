"""The matches of ``tools.bench.compare``: what is run on which sides.

Every engine gets the same model, as many threads, the same numbers of tokens and greedy decoding, and no engine keeps a
prompt for later. Ours and OpenVINO's responses are timed token by token; llama.cpp is timed by its own programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tools.bench.inprocess import in_process
from tools.bench.over_http import run_over_http
from tools.bench.peers import llama_cpp, vllm
from tools.bench.peers.genai import genai
from tools.bench.peers.places import GGUF_TYPES, gguf, missing_program, vllm_python, why_missing
from tools.bench.roofline import Limits, ModelCost, model_cost
from tools.bench.server import running_server
from tools.bench.stats import Record, Summary, median, steady_rate
from tools.bench.targets import OURS
from tools.bench.turns import take_turns
from tools.bench.workload import EVERY_TOKEN, GREEDY, Lengths, Request, TokenRequest, random_requests, token_requests

MOST_STREAMS = 32
PREFILLS = 2  # prompts of a measurement
HTTP_STREAMS = 16
SMALL_CACHE = 0.05  # of the free memory; more than these workloads fill
# The full cache: long responses, and room for three of the 16-bit sequences of mean length, 640 tokens.
FULL_REQUESTS, FULL_BLOCKS = 20, 30
FULL_PROMPTS, FULL_OUTPUTS = Lengths(128, 384), Lengths(256, 512)

Answer = Callable[[Sequence[TokenRequest], int], list[Record]]
Measured = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Match:
    """One workload of the engines alone.

    Attributes
    ----------
    part
        ``decode``, ``streams`` or ``prefill``.
    bits
        Of the weights.
    streams, prompt_len, output_len
        Sequences at a time, and their tokens.
    prompts
        Of a measurement, where prompts are measured.
    """

    part: str
    bits: int
    streams: int
    prompt_len: int
    output_len: int
    prompts: int = PREFILLS

    def __str__(self) -> str:
        if self.part == "prefill":
            return f"prefill of {self.prompt_len}, {self.bits}-bit"
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"decode, {streams}, {self.bits}-bit"

    @property
    def llama_bits(self) -> int:
        """Of llama.cpp's weights: it reads prompts fastest with 4."""
        return 4 if self.part == "prefill" else self.bits

    def rate(self, response: Answer) -> float:
        """Return an engine's tokens/s: of prompts up to the first token, or generated while all streams generate."""
        if self.part == "prefill":
            records = response(token_requests(self.prompts, self.prompt_len, 1, seed=1), 1)
            return self.prompts * self.prompt_len / sum(record.first_token_latency for record in records)
        return steady_rate(
            response(token_requests(self.streams, self.prompt_len, self.output_len, seed=1), self.streams)
        )

    def llama_rate(self, model: Path, attention: Sequence[str] = llama_cpp.ATTENTION) -> float:
        """Return the tokens/s of llama.cpp, with the fastest of these kinds of attention."""
        if self.part == "prefill":
            return llama_cpp.prefill_rate(model, self.prompt_len, self.prompts, attention)
        if self.streams == 1:
            return llama_cpp.decode_rate(model, self.prompt_len, self.output_len, attention)
        return llama_cpp.streams_rate(model, self.streams, self.prompt_len, self.output_len, attention)

    def share(self, cost: ModelCost, limits: Limits, rate: float) -> float | None:
        """Return the share of the machine's limit: of bandwidth with one stream, of int8 operations for a prompt."""
        if self.streams > 1 or (self.part == "prefill" and self.bits == 16):
            return None  # neither limit alone, or one that is not measured
        if self.part == "prefill":
            return cost.compute_share(limits.int8, rate)
        return cost.bandwidth_share(limits, rate, self.prompt_len + self.output_len / 2)


MATCHES = (
    *(Match("decode", bits, 1, 64, 96) for bits in (4, 8, 16)),
    *(Match("streams", 4, streams, 64, 64) for streams in (8, MOST_STREAMS)),
    *(Match("prefill", bits, 1, length, 1) for bits in (4, 8) for length in (512, 1024)),
    Match("prefill", 16, 1, 512, 1),
)


def engine_config(bits: int) -> TurbomindEngineConfig:
    """Return our engine's config with weights of this many bits."""
    rounded = bits if bits < 16 else None
    return TurbomindEngineConfig(
        dtype="bfloat16",
        weight_bits=rounded,
        max_batch_size=MOST_STREAMS,
        cache_max_entry_count=SMALL_CACHE,
        **EVERY_TOKEN,
    )


@dataclass(frozen=True)
class Rounds:
    """How often each side is measured, and what is waited for before it is."""

    count: int
    pause: Callable[[], None]


def play(
    matches: Sequence[Match], model_path: Path, rounds: Rounds, limits: Limits
) -> Iterator[tuple[str, dict[str, list[float]], float | None]]:
    """Play matches, and yield each one's name, the rates of its sides, and our share of the machine's limit."""
    for bits in GGUF_TYPES:
        chosen = [match for match in matches if match.bits == bits]
        if chosen:
            with _answers(model_path, bits) as (responses, cost):
                for match in chosen:
                    yield str(match), *_play(match, model_path, rounds, responses, cost, limits)


def _play(
    match: Match, model_path: Path, rounds: Rounds, responses: dict[str, Answer], cost: ModelCost, limits: Limits
) -> tuple[dict[str, list[float]], float | None]:
    sides: dict[str, Callable[[], float]] = {}
    for name, response in responses.items():
        match.rate(response)  # warm up
        sides[name] = lambda response=response: match.rate(response)  # type: ignore[misc]
    model = gguf(model_path, match.llama_bits)
    if why_missing("llama.cpp", model_path, match.llama_bits) is None:
        sides[f"llama.cpp {GGUF_TYPES[match.llama_bits]}"] = lambda: match.llama_rate(model)
    print(f"-- {match}", flush=True)
    rates = take_turns(sides, rounds.count, "{:.1f} tokens/s".format, rounds.pause)
    return rates, match.share(cost, limits, median(rates[OURS]))


@contextmanager
def _answers(model_path: Path, bits: int) -> Iterator[tuple[dict[str, Answer], ModelCost]]:
    config = engine_config(bits)
    with ExitStack() as stack:
        ours = stack.enter_context(in_process(str(model_path), config))
        responses: dict[str, Answer] = {OURS: lambda requests, streams: ours.generate(requests, streams, GREEDY)}
        if why_missing("openvino", model_path, bits) is None:
            responses[f"openvino {GGUF_TYPES[bits]}"] = stack.enter_context(
                genai(gguf(model_path, bits), MOST_STREAMS)
            ).generate
        yield responses, model_cost(ours.spec, config)


def over_http(model_path: Path, rounds: Rounds) -> Measured:
    """Return the tokens/s of whole requests through HTTP, 16 at a time: gateway and Triton, llama-server and vLLM.

    llama-server has weights of 4 bits, vLLM of 16; of these, how soon the first tokens come is measured too.
    """
    found: Measured = {}
    requests = random_requests(2 * HTTP_STREAMS, Lengths(32, 256), Lengths(32, 192), seed=1)
    tokenizer = Tokenizer(str(model_path))
    longest = max(len(tokenizer.encode(request.prompt)) + request.output_len for request in requests)
    file = gguf(model_path, 4)
    if why_missing("llama.cpp", model_path, 4) is None:
        peer = {"llama-server Q4_0": lambda: llama_cpp.serving(file, HTTP_STREAMS, longest)}
    else:
        peer = {}
    runs = _served(model_path, 4, peer, requests, rounds)
    found[f"HTTP, {HTTP_STREAMS} streams, 4-bit"] = {
        side: [run.token_throughput for run in each] for side, each in runs.items()
    }
    if missing_program(vllm_python()) is None:
        peer = {"vLLM bfloat16": lambda: vllm.serving(model_path, HTTP_STREAMS, longest)}
        runs = _served(model_path, 16, peer, requests, rounds)
        name = f"HTTP, {HTTP_STREAMS} streams, 16-bit"
        found[name] = {side: [run.token_throughput for run in each] for side, each in runs.items()}
        found[f"{name}: first tokens"] = {
            side: [1 / run.first_token_latency["p50"] for run in each] for side, each in runs.items()
        }
    return found


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


def full_cache(model_path: Path, rounds: Rounds) -> Measured:
    """Return the requests a minute that a cache of fixed memory allows with values of 16, 8 and 4 bits.

    All requests wait at once for the room that ``FULL_BLOCKS`` blocks of 16-bit values take; weights have
    8 bits. Where the room ends a sequence waits, or gives its blocks back and is computed again.
    """
    requests = random_requests(FULL_REQUESTS, FULL_PROMPTS, FULL_OUTPUTS, seed=1)
    plain = engine_config(8)
    spec = resolve(model_path).spec
    memory = FULL_BLOCKS * model_cost(spec, plain).cache_bytes
    with ExitStack() as stack:

        def side(policy: int) -> Callable[[], float]:
            config = replace(plain, quant_policy=policy, max_batch_size=FULL_REQUESTS)
            config.cache_max_entry_count = memory // model_cost(spec, config).cache_bytes
            engine = stack.enter_context(in_process(str(model_path), config))
            return lambda: engine.run(requests, FULL_REQUESTS, GREEDY).requests_per_minute

        sides = {f"{bits}-bit cache": side(policy) for bits, policy in ((16, 0), (8, 8), (4, 4))}
        print("-- full cache", flush=True)
        rates = take_turns(sides, rounds.count, "{:.1f} requests a minute".format, rounds.pause)
    unrounded = rates.pop("16-bit cache")
    return {f"full cache, {name}": {OURS: values, "16-bit cache": unrounded} for name, values in rates.items()}
