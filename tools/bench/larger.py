"""Comparisons of ``tools.bench.compare`` with larger models: dense, mixtures of experts, long contexts, an agent's day.

Every side reads the same GGUF file of random weights (``peers/shapes.py``), which is written for its match and removed
after it, unless it was there. A peer that cannot run a file is left out of its rows, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine
from tools.bench.inprocess import in_process
from tools.bench.matches import MOST_STREAMS, Answer, Match, Rounds, engine_config
from tools.bench.peers import ik_llama, llama_cpp
from tools.bench.peers.conversations import (
    AGENT_TURNS,
    SESSION,
    Conversations,
    LlamaServer,
    Measured,
    Ours,
    agent_times,
)
from tools.bench.peers.genai import genai
from tools.bench.peers.mistral import Mistral, mistral
from tools.bench.peers.places import ik_tool, llama_tool, missing_program, mistral_python, openvino_python
from tools.bench.peers.shapes import SHAPES, random_file
from tools.bench.roofline import Limits
from tools.bench.stats import median
from tools.bench.targets import OURS
from tools.bench.turns import take_turns
from tools.bench.workload import GREEDY, Lengths, random_requests, token_requests

PARTS = ("large", "moe", "long", "agent")
CONTEXTS = (4000, 16000, 32000)  # tokens
CACHE_BITS = (16, 8, 4)
_MODELS = {
    "large": tuple((name, bits) for name in ("llama-3.2-1b", "qwen3-4b") for bits in (4, 8)),
    "moe": (("qwen3-30b-a3b", 4), ("gpt-oss-20b", 4)),
    "long": (("llama-3.2-1b", 4),),
    "agent": (("llama-3.2-1b", 4),),
}
_MATCHES = (
    ("decode", 1, 64, 64),
    ("streams", 8, 64, 48),
    ("streams", MOST_STREAMS, 64, 48),
    ("prefill", 1, 1024, 1),
)
_AFTER_CONTEXT = 33  # tokens
_OPENVINO_CACHE_BITS = 8  # its own choice on processors

Sides = dict[str, Callable[[], float]]
Played = tuple[str, dict[str, list[float]], float | None]


@dataclass(frozen=True)
class Choice:
    """What of the matches is played.

    Attributes
    ----------
    parts
        Some of ``PARTS``.
    models
        Names of ``SHAPES``.
    contexts
        Of the part ``long``, in tokens.
    cache_bits
        Of the keys and values of the part ``long``.
    """

    parts: Sequence[str]
    models: Sequence[str] = tuple(SHAPES)
    contexts: Sequence[int] = CONTEXTS
    cache_bits: Sequence[int] = CACHE_BITS


def play(choice: Choice, rounds: Rounds, limits: Limits) -> Iterator[Played]:
    """Play matches, and yield each one's name, the rates of its sides, and our share of the machine's limit."""
    for part in choice.parts:
        for name, bits in _MODELS[part]:
            if name not in choice.models:
                continue
            with random_file(name, bits) as file:
                if part == "long":
                    yield from _long(name, bits, file, choice, rounds)
                elif part == "agent":
                    yield from _agent(name, bits, file, rounds)
                else:
                    yield from _match(name, bits, file, rounds, limits)


def _match(name: str, bits: int, file: Path, rounds: Rounds, limits: Limits) -> Iterator[Played]:
    config, kind = replace(engine_config(16), max_prefill_token_num=2048), SHAPES[name].kind(bits)
    with _answers(file, kind, config) as answers, _mistral(file) as runner:
        for part, streams, prompt_len, output_len in _MATCHES:
            match = Match(part, bits, streams, prompt_len, output_len, prompts=1)
            title = f"{name}: {match}"
            sides: Sides = {}
            for side, answer in answers.items():
                if _is_able(title, side, partial(answer, token_requests(streams, prompt_len, 2, seed=2), streams)):
                    sides[side] = partial(match.rate, answer)
            sides |= _programs(title, match, file, kind)
            if runner and streams == 1:
                length = Lengths(prompt_len, prompt_len)
                (request,) = random_requests(1, length, length, seed=1)
                if _is_able(title, "mistral.rs", partial(runner.answer, request.prompt, 2)):
                    sides[f"mistral.rs {kind}"] = partial(_mistral_rate, runner, request.prompt, match)
            elif runner:
                print(f"-- {title}: mistral.rs is left out: its runner takes one request at a time", flush=True)
            rates = _turns(title, sides, rounds)
            share = None
            if match.part == "decode":
                share = SHAPES[name].token_bytes(bits) * median(rates[OURS]) / limits.bandwidth
            yield title, rates, share


def _programs(title: str, match: Match, file: Path, kind: str) -> Sides:
    """Return the sides that are programs, which load the file for each run."""
    sides: Sides = {}
    if missing_program(llama_tool("llama-bench")) is None:
        sides[f"llama.cpp {kind}"] = _llama_side(match, file)
    name = f"ik_llama.cpp {kind}"
    is_there = missing_program(ik_tool("llama-batched-bench")) is None
    if is_there and _is_able(title, name, partial(ik_llama.rates, file, 1, 16, 2)):
        sides[name] = partial(_ik_rate, file, match)
    return sides


def _ik_rate(file: Path, match: Match) -> float:
    prompts, responses = ik_llama.rates(file, match.streams, match.prompt_len, match.output_len)
    return prompts if match.part == "prefill" else responses


@contextmanager
def _mistral(file: Path) -> Iterator[Mistral | None]:
    """Open mistral.rs on a file; None: it is not installed."""
    if missing_program(mistral_python()):
        yield None
        return
    with mistral(file) as runner:
        yield runner


def _mistral_rate(runner: Mistral, prompt: str, match: Match) -> float:
    used = runner.answer(prompt, match.output_len)
    return used.prompt_tokens / used.prompt_seconds if match.part == "prefill" else used.tokens / used.seconds


@contextmanager
def _answers(file: Path, kind: str, config: TurbomindEngineConfig) -> Iterator[dict[str, Answer]]:
    """Open ours and OpenVINO on a file."""
    with ExitStack() as stack:
        ours = stack.enter_context(in_process(str(file), config))
        answers: dict[str, Answer] = {OURS: lambda requests, streams: ours.generate(requests, streams, GREEDY)}
        if missing_program(openvino_python()) is None:
            answers[f"openvino {kind}"] = stack.enter_context(genai(file, MOST_STREAMS)).generate
        yield answers


def _is_able(title: str, side: str, warm_up: Callable[[], object]) -> bool:
    """Warm a side up, and return whether it can do a match; a peer that cannot is named."""
    try:
        warm_up()
    except RuntimeError as error:
        if side == OURS:
            raise
        print(f"-- {title}: {side} is left out: {str(error).strip().splitlines()[-1]}", flush=True)
        return False
    return True


def _llama_side(match: Match, file: Path) -> Callable[[], float]:
    """Return llama.cpp's side: its first run finds out which attention is faster, the later ones have that one."""
    faster: list[str] = []

    def run() -> float:
        rates = {kind: match.llama_rate(file, [kind]) for kind in faster or llama_cpp.ATTENTION}
        faster[:] = [max(rates, key=lambda kind: rates[kind])]
        return rates[faster[0]]

    return run


def _turns(title: str, sides: Sides, rounds: Rounds, describe: str = "{:.1f} tokens/s") -> dict[str, list[float]]:
    print(f"-- {title}", flush=True)
    return take_turns(sides, rounds.count, describe.format, rounds.pause)


def _long(name: str, bits: int, file: Path, choice: Choice, rounds: Rounds) -> Iterator[Played]:
    """Long prompts, and what is generated after them; both rates are of one run."""
    kind = SHAPES[name].kind(bits)
    for cache_bits in choice.cache_bits:
        config = replace(
            engine_config(16),
            quant_policy=0 if cache_bits == 16 else cache_bits,
            max_batch_size=1,
            session_len=max(choice.contexts) + 2 * _AFTER_CONTEXT,
            cache_max_entry_count=0.2,
        )
        with _answers(file, kind, config) as answers:
            if cache_bits != _OPENVINO_CACHE_BITS:
                answers = {OURS: answers[OURS]}
            for length in choice.contexts:
                sides = {side: partial(_context_rates, answer, length) for side, answer in answers.items()}
                if missing_program(llama_tool("llama-batched-bench")) is None:
                    sides[f"llama.cpp {kind}"] = partial(
                        llama_cpp.context_rates, file, length, _AFTER_CONTEXT - 1, cache_bits
                    )
                if missing_program(ik_tool("llama-batched-bench")) is None:
                    sides[f"ik_llama.cpp {kind}"] = partial(
                        ik_llama.rates, file, 1, length, _AFTER_CONTEXT - 1, cache_bits
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
    (first, _), (last, _) = record.arrivals[0], record.arrivals[-1]
    return length / record.first_token_latency, (_AFTER_CONTEXT - record.arrivals[0][1]) / (last - first)


def _agent(name: str, bits: int, file: Path, rounds: Rounds) -> Iterator[Played]:
    """An agent's day: 20 turns over a growing conversation with results of tools, on engines that keep prompts."""
    chat = Conversations(Tokenizer(str(file)))
    config = TurbomindEngineConfig(dtype="bfloat16", session_len=SESSION, speculative_config="none")
    with ExitStack() as stack:
        asked: dict[str, Measured] = {OURS: Ours(stack.enter_context(closing(Engine(str(file), config))))}
        if missing_program(llama_tool("llama-server")) is None:
            server = llama_cpp.serving(file, 1, SESSION, keeps_prompts=True)
            asked[f"llama-server {SHAPES[name].kind(bits)}"] = LlamaServer(stack.enter_context(server))
        sides: Sides = {side: partial(_first_tokens, each, chat) for side, each in asked.items()}
        title = f"{name}: agent's day, {bits}-bit"
        yield title, _turns(title, sides, rounds, "{:.2f} first tokens/s"), None


def _first_tokens(measured: Measured, chat: Conversations) -> float:
    return AGENT_TURNS / sum(agent_times(measured, chat))
