"""Benchmark of prefix reuse in conversations: ``python -m tools.bench agents MODEL`` prints a table.

What a model says does not matter here, so one of random weights will do (:mod:`tools.bench.random_model`). Prompts are
token ids in the form of ChatML. With ``--llama-server FILE``, a GGUF file of the same model, llama-server is asked for
the same prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import httpx

from lmdeploy import TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from tools.bench.inprocess import InProcess, in_process
from tools.bench.peers import llama_cpp
from tools.bench.stats import Record, median
from tools.bench.workload import GREEDY, TokenRequest

TIMEOUT = 600.0  # seconds, of one request
DOCUMENT, SYSTEM, MESSAGE, RESPONSE = 6000, 1300, 40, 64  # tokens
AGENT_TURNS, TOOL_RESULT = 20, 150
SESSION = 8192  # tokens of a sequence
SLOTS = 8  # of llama-server


class Conversations:
    """Prompts between special tokens, of random tokens that repeat with the seed."""

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._begin, self._end = tokenizer.bos_token_id or 0, tokenizer.eos_token_id or 0

    def tokens(self, count: int) -> list[int]:
        """Return ``count`` tokens of text."""
        return [self._random.randrange(200) for _ in range(count)]

    def message(self, role: int, text: Sequence[int]) -> list[int]:
        """Return a message: its marks take five tokens."""
        return [self._begin, role, 10, *text, self._end, 10]

    def prompt_of(self, *messages: list[int]) -> list[int]:
        """Return the prompt whose response continues after these messages."""
        return [token for message in messages for token in message] + [self._begin, 1, 10]

    def ended(self, response: Record) -> list[int]:
        """Return the conversation after a response."""
        return [*response.tokens, self._end, 10]


class Measured(Protocol):
    """Takes requests, and counts the tokens of prompts that it computes."""

    def send(self, prompts: Sequence[Sequence[int]], tokens: int = RESPONSE) -> tuple[int, list[Record]]:
        """Return how many tokens of these prompts, asked at once, were computed, and their responses."""


class Ours:
    """The engine of this project."""

    def __init__(self, engine: InProcess) -> None:
        self._engine = engine

    def send(self, prompts: Sequence[Sequence[int]], tokens: int = RESPONSE) -> tuple[int, list[Record]]:
        """See `Measured`."""
        before = self._engine.tokens_computed
        requests = [TokenRequest(tuple(prompt), tokens) for prompt in prompts]
        records = self._engine.generate(requests, len(requests), GREEDY)
        return self._engine.tokens_computed - before - len(prompts) * (tokens - 1), records


class LlamaServer:
    """llama-server, over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def send(self, prompts: Sequence[Sequence[int]], tokens: int = RESPONSE) -> tuple[int, list[Record]]:
        """See `Measured`."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            answered = list(pool.map(lambda prompt: self._send(prompt, tokens), prompts))
        return sum(computed for computed, _ in answered), [record for _, record in answered]

    def _send(self, prompt: Sequence[int], tokens: int) -> tuple[int, Record]:
        body = {"prompt": list(prompt), "n_predict": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
        record = Record(time.perf_counter())
        with httpx.stream(
            "POST", f"{self._url}/completion", json=body | {"return_tokens": True}, timeout=TIMEOUT
        ) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    record.arrive(event["tokens"])
                    if event["stop"]:
                        return event["timings"]["prompt_n"], record
        raise RuntimeError("llama-server did not end a response")


def row(what: str, value: str) -> None:
    """Print a row of the table."""
    print(f"| {what} | {value} |", flush=True)


def measure_chat(measured: Measured, chat: Conversations) -> None:
    """Eight turns about a document, another last question, and another question after the document."""
    document = chat.tokens(DOCUMENT)
    prompt = chat.prompt_of(chat.message(0, chat.tokens(30)), chat.message(2, document + chat.tokens(20)))
    first, [response] = measured.send([prompt])
    row("document of 6,000 tokens, first turn", f"{first} of {len(prompt)}")
    over, times = [], []
    for _ in range(7):
        added = chat.message(2, chat.tokens(MESSAGE))
        last = [*prompt, *chat.ended(response)]
        prompt = last + chat.prompt_of(added)
        computed, [response] = measured.send([prompt])
        over.append(computed - len(chat.prompt_of(added)) - 2)
        times.append(response.first_token_latency)
    row("turns 2 to 8, tokens beyond the new ones (target: 64)", f"{max(over)} at most")
    row("turns 2 to 8, time to first token (target: llama-server's)", f"{median(times) * 1000:.0f} ms")
    edited = last + chat.prompt_of(chat.message(2, chat.tokens(MESSAGE)))
    computed, [response] = measured.send([edited])
    row("an edited last question, beyond its own tokens (target: 64)", _beyond(response, computed - MESSAGE - 2))
    beginning = chat.message(0, chat.tokens(30))
    for name in ("first", "another", "a third"):
        question = chat.tokens(30)
        computed, [response] = measured.send([chat.prompt_of(beginning, chat.message(2, document + question))])
        if name != "first":
            row(f"{name} question about the same document, beyond it (target: 128)", _beyond(response, computed - 35))


def _beyond(response: Record, tokens: int) -> str:
    return f"{tokens}, first token after {response.first_token_latency * 1000:.0f} ms"


def agent_times(measured: Measured, chat: Conversations) -> list[float]:
    """Return the times to first token of an agent's day: a system prompt, then calls of tools and their results."""
    prompt = chat.prompt_of(chat.message(0, chat.tokens(1000)), chat.message(2, chat.tokens(60)))
    times = []
    for _ in range(AGENT_TURNS):
        _, [response] = measured.send([prompt])
        times.append(response.first_token_latency)
        prompt = [*prompt, *chat.ended(response), *chat.prompt_of(chat.message(3, chat.tokens(TOOL_RESULT)))]
    return times


def measure_agent(measured: Measured, chat: Conversations) -> None:
    """An agent's day."""
    times = agent_times(measured, chat)
    name = f"an agent's {AGENT_TURNS} turns with results of {TOOL_RESULT} tokens: sum of times to first token"
    row(f"{name} (target: 0.7 of llama-server's)", f"{sum(times):.2f} s")


def measure_shared(measured: Measured, chat: Conversations) -> None:
    """Six conversations with one system prompt."""
    for name in ("one after another (target: 1.02)", "all at once (target: 1.05)"):
        system = chat.message(0, chat.tokens(SYSTEM))
        prompts = [chat.prompt_of(system, chat.message(2, chat.tokens(50))) for _ in range(6)]
        distinct = len(system) + sum(len(prompt) - len(system) for prompt in prompts)
        if "at once" in name:
            computed, _ = measured.send(prompts, 8)
        else:
            computed = sum(measured.send([prompt], 8)[0] for prompt in prompts)
        row(f"six conversations, a system prompt of 1,300 tokens, {name}", f"{computed / distinct:.3f}")


_PARTS: dict[str, Callable[[Measured, Conversations], None]] = {
    "chat": measure_chat,
    "agent": measure_agent,
    "shared": measure_shared,
}


def main() -> None:
    """Measure each part with an engine or a server of its own, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--weight-bits", type=int, default=4)
    parser.add_argument("--quant-policy", type=int, default=0, help="bits of the KV cache; 0: those of the weights")
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=list(_PARTS))
    parser.add_argument(
        "--llama-server", type=Path, metavar="FILE", help="GGUF file for llama-server: measured instead"
    )
    given = parser.parse_args()
    chat = Conversations(Tokenizer(str(given.model)))
    config = TurbomindEngineConfig(
        weight_bits=given.weight_bits, quant_policy=given.quant_policy, speculative_config="none", session_len=SESSION
    )
    print("| what | measured |\n| --- | --- |")
    for name in given.only:
        with ExitStack() as stack:
            if given.llama_server:
                cache = llama_cpp.CACHE_TYPES[given.quant_policy or 16]
                serving = llama_cpp.serving(given.llama_server, SLOTS, SESSION, keeps_prompts=True, cache_type=cache)
                measured: Measured = LlamaServer(stack.enter_context(serving))
            else:
                measured = Ours(stack.enter_context(in_process(str(given.model), config)))
            _PARTS[name](measured, chat)
