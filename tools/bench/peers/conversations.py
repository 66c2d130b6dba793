"""What conversations cost: prefixes that are found again, long contexts, drafts.

``python -m tools.bench.peers.conversations MODEL`` prints a table. ``python -m tools.bench.random_model SHAPE FOLDER``
writes a model to measure; what it says does not matter here. Prompts are token ids in the form of ChatML.
With ``--llama-server FILE``, a GGUF file of the same model, llama-server is asked for the same prompts.
"""

import argparse
import json
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import httpx

from lmdeploy import GenerationConfig, TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine, EngineOutput
from tools.bench.peers import llama_cpp
from tools.bench.quiet import wait_until_quiet
from tools.bench.stats import median

TIMEOUT = 600.0  # seconds, of one request
DOCUMENT, SYSTEM, MESSAGE, RESPONSE = 6000, 1300, 40, 64  # tokens
AGENT_TURNS, TOOL_RESULT = 20, 150
LONG = 16000
SESSION = 8192  # tokens of a sequence
SLOTS = 8  # of llama-server


class Asked:
    """A request under way.

    Attributes
    ----------
    tokens
        Of its response, so far.
    times
        When they came.
    """

    def __init__(self, engine: Engine, prompt: Sequence[int], tokens: int) -> None:
        self.tokens: list[int] = []
        self.times: list[float] = []
        self._done = threading.Event()
        self._error = ""
        engine.submit(list(prompt), GenerationConfig(max_new_tokens=tokens, ignore_eos=True), self._receive)

    def _receive(self, output: EngineOutput) -> None:
        self.tokens += output.token_ids
        self.times += [time.perf_counter()] * len(output.token_ids)
        self._error = output.error
        if output.is_final:
            self._done.set()

    def wait(self) -> list[int]:
        """Return the tokens of the response."""
        if not self._done.wait(TIMEOUT) or self._error:
            raise SystemExit(f"a request did not end: {self._error or 'it takes too long'}")
        return self.tokens


def seconds_a_token(asked: Asked) -> float:
    """Return the time from the first token to the last, a token."""
    asked.wait()
    return (asked.times[-1] - asked.times[0]) / max(1, len(asked.times) - 1)


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

    def asked(self, *messages: list[int]) -> list[int]:
        """Return the prompt whose response continues after these messages."""
        return [token for message in messages for token in message] + [self._begin, 1, 10]

    def ended(self, response: Sequence[int]) -> list[int]:
        """Return what stands after the prompt when a response has come."""
        return [*response, self._end, 10]


class Measured(Protocol):
    """Takes requests, and counts the tokens of prompts that it computes.

    Attributes
    ----------
    first_token
        Seconds to the first token of each prompt of the last call.
    later_token
        Seconds of each token after it, of each response.
    """

    first_token: list[float]
    later_token: list[float]

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int = RESPONSE) -> tuple[int, list[list[int]]]:
        """Return how many tokens of these prompts, asked at once, were computed, and their responses."""


class Ours:
    """The engine of this project."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.first_token: list[float] = []
        self.later_token: list[float] = []

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int = RESPONSE) -> tuple[int, list[list[int]]]:
        """See `Measured`."""
        before = self.engine.metrics()["tokens_computed_total"]
        start = time.perf_counter()
        asked = [Asked(self.engine, prompt, tokens) for prompt in prompts]
        responses = [each.wait() for each in asked]
        self.first_token = [each.times[0] - start for each in asked]
        self.later_token = [seconds_a_token(each) for each in asked]
        after = self.engine.metrics()["tokens_computed_total"]
        return int(after - before) - len(prompts) * (tokens - 1), responses


class LlamaServer:
    """llama-server, over HTTP."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.first_token: list[float] = []
        self.later_token: list[float] = []

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int = RESPONSE) -> tuple[int, list[list[int]]]:
        """See `Measured`."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            answered = list(pool.map(lambda prompt: self._ask(prompt, tokens), prompts))
        self.first_token = [first for _, _, first, _ in answered]
        self.later_token = [later for _, _, _, later in answered]
        return sum(computed for computed, *_ in answered), [response for _, response, _, _ in answered]

    def _ask(self, prompt: Sequence[int], tokens: int) -> tuple[int, list[int], float, float]:
        body = {"prompt": list(prompt), "n_predict": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
        start, first, response = time.perf_counter(), 0.0, []
        with httpx.stream(
            "POST", f"{self.url}/completion", json=body | {"return_tokens": True}, timeout=TIMEOUT
        ) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                first = first or time.perf_counter() - start
                response += event["tokens"]
                if event["stop"]:
                    later = (time.perf_counter() - start - first) / max(1, tokens - 1)
                    return event["timings"]["prompt_n"], response, first, later
        raise SystemExit("llama-server did not end a response")


def beyond(measured: Measured, tokens: int) -> str:
    """Return how many tokens the last prompt cost beyond its new ones, and its time to first token."""
    return f"{tokens}, first token after {measured.first_token[0] * 1000:.0f} ms"


def measure_chat(measured: Measured, chat: Conversations, row: "Row") -> None:
    """Eight turns about a document, another last question, and another question after the document."""
    document = chat.tokens(DOCUMENT)
    prompt = chat.asked(chat.message(0, chat.tokens(30)), chat.message(2, document + chat.tokens(20)))
    first, [response] = measured.ask([prompt])
    row("document of 6,000 tokens, first turn", f"{first} of {len(prompt)}")
    over, times = [], []
    for _ in range(7):
        added = chat.message(2, chat.tokens(MESSAGE))
        last = [*prompt, *chat.ended(response)]
        prompt = last + chat.asked(added)
        computed, [response] = measured.ask([prompt])
        over.append(computed - len(chat.asked(added)) - 2)
        times += measured.first_token
    row("turns 2 to 8, tokens beyond the new ones (target: 64)", f"{max(over)} at most")
    row("turns 2 to 8, time to first token (target: llama-server's)", f"{median(times) * 1000:.0f} ms")
    edited = last + chat.asked(chat.message(2, chat.tokens(MESSAGE)))
    computed, _ = measured.ask([edited])
    row("an edited last question, beyond its own tokens (target: 64)", beyond(measured, computed - MESSAGE - 2))
    beginning = chat.message(0, chat.tokens(30))
    for name in ("first", "another", "a third"):
        question = chat.tokens(30)
        computed, _ = measured.ask([chat.asked(beginning, chat.message(2, document + question))])
        if name != "first":
            row(f"{name} question about the same document, beyond it (target: 128)", beyond(measured, computed - 35))


def agent_times(measured: Measured, chat: Conversations) -> list[float]:
    """Return the times to first token of an agent's day: a system prompt, then calls of tools and their results."""
    prompt = chat.asked(chat.message(0, chat.tokens(1000)), chat.message(2, chat.tokens(60)))
    times = []
    for _ in range(AGENT_TURNS):
        _, [response] = measured.ask([prompt])
        times += measured.first_token
        prompt = [*prompt, *chat.ended(response), *chat.asked(chat.message(3, chat.tokens(TOOL_RESULT)))]
    return times


def measure_agent(measured: Measured, chat: Conversations, row: "Row") -> None:
    """An agent's day."""
    times = agent_times(measured, chat)
    name = f"an agent's {AGENT_TURNS} turns with results of {TOOL_RESULT} tokens: sum of times to first token"
    row(f"{name} (target: 0.7 of llama-server's)", f"{sum(times):.2f} s")


def measure_long(measured: Measured, chat: Conversations, row: "Row") -> None:
    """A long prompt, and how fast tokens come after it."""
    measured.ask([chat.tokens(LONG)], 48)
    row(f"a prompt of {LONG:,} tokens (target: 2 times the peer's)", f"{LONG / measured.first_token[0]:.0f} tokens/s")
    row("decode after it (target: 1.5 times the peer's)", f"{1 / measured.later_token[0]:.1f} tokens/s")


def measure_shared(measured: Measured, chat: Conversations, row: "Row") -> None:
    """Six conversations with one system prompt."""
    for name in ("one after another (target: 1.02)", "all at once (target: 1.05)"):
        system = chat.message(0, chat.tokens(SYSTEM))
        prompts = [chat.asked(system, chat.message(2, chat.tokens(50))) for _ in range(6)]
        distinct = len(system) + sum(len(prompt) - len(system) for prompt in prompts)
        if "at once" in name:
            computed, _ = measured.ask(prompts, 8)
        else:
            computed = sum(measured.ask([prompt], 8)[0] for prompt in prompts)
        row(f"six conversations, a system prompt of 1,300 tokens, {name}", f"{computed / distinct:.3f}")


def measure_interleaved(measured: Measured, chat: Conversations, row: "Row") -> None:
    """Forty conversations, turn by turn."""
    prompts = [chat.asked(chat.message(0, chat.tokens(200)), chat.message(2, chat.tokens(200))) for _ in range(40)]
    for turn in range(3):
        computed, new = 0, 0
        for i, prompt in enumerate(prompts):
            added, [response] = measured.ask([prompt], 32)
            computed += added
            new += len(prompt) if turn == 0 else MESSAGE + 10
            prompts[i] = [*prompt, *chat.ended(response), *chat.asked(chat.message(2, chat.tokens(MESSAGE)))]
        row(f"forty conversations interleaved, round {turn + 1}: computed of new tokens", f"{computed} of {new}")


def measure_context(engine: Engine, chat: Conversations, row: "Row") -> None:
    """Decode after a long context and a short one, in turns."""
    short, long = chat.tokens(100), chat.tokens(16000)
    ratios = []
    for _ in range(3):
        wait_until_quiet()
        ratios.append(seconds_a_token(Asked(engine, long, 48)) / seconds_a_token(Asked(engine, short, 48)))
    row("decode behind 16,000 tokens over 100 (target: 1.25)", f"{median(ratios):.2f}")


def measure_drafts(model: Path, settings: dict[str, Any], chat: Conversations, row: "Row") -> None:
    """One stream that says what was said before, with drafts and without, in turns."""
    prompt = chat.asked(chat.message(2, chat.tokens(100)))
    config = TurbomindEngineConfig(**settings, session_len=1024)
    drafting = TurbomindEngineConfig(**settings | {"speculative_config": "auto"}, session_len=1024)
    ratios = []
    with closing(Engine(str(model), config)) as plain, closing(Engine(str(model), drafting)) as engine:
        Asked(engine, prompt, 256).wait()
        for _ in range(5):
            wait_until_quiet()
            without = Asked(plain, prompt, 256)
            slow = seconds_a_token(without)
            copying = Asked(engine, prompt, 256)
            ratios.append(slow / seconds_a_token(copying))
            if copying.tokens != without.tokens:
                raise SystemExit("a response is another one with drafts")
        metrics = engine.metrics()
    accepted = metrics["draft_tokens_accepted_total"] / max(1.0, metrics["draft_tokens_total"])
    row(
        f"one stream copying, tokens/s with drafts over without ({accepted:.0%} accepted, target: 1.6)",
        f"{median(ratios):.2f}",
    )


class Row:
    """Prints rows of a table."""

    def __init__(self) -> None:
        print("| what | measured |\n| --- | --- |")

    def __call__(self, what: str, value: str) -> None:
        """Print one."""
        print(f"| {what} | {value} |", flush=True)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--weight-bits", type=int, default=4)
    parser.add_argument("--quant-policy", type=int, default=0, help="bits of the KV cache; 0: those of the weights")
    parser.add_argument("--only", default="chat,agent,shared,interleaved,long,context,drafts")
    parser.add_argument(
        "--llama-server", type=Path, metavar="FILE", help="GGUF file for llama-server, measured instead"
    )
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    chat = Conversations(Tokenizer(str(arguments.model)))
    settings: dict[str, Any] = {
        "weight_bits": arguments.weight_bits,
        "quant_policy": arguments.quant_policy,
        "speculative_config": "none",
    }
    row = Row()
    for name, (measure, slots, session) in {
        "chat": (measure_chat, SLOTS, SESSION),
        "agent": (measure_agent, SLOTS, SESSION),
        "shared": (measure_shared, SLOTS, SESSION),
        "interleaved": (measure_interleaved, SLOTS, SESSION),
        "long": (measure_long, 1, LONG + 64),
    }.items():
        if name not in parts:
            continue
        if arguments.llama_server:
            cache = {0: "f16", 8: "q8_0", 4: "q4_0"}[arguments.quant_policy]
            with llama_cpp.serving(arguments.llama_server, slots, session, keeps_prompts=True, cache_type=cache) as url:
                measure(LlamaServer(url), chat, row)
            continue
        with closing(Engine(str(arguments.model), TurbomindEngineConfig(**settings, session_len=session))) as engine:
            measure(Ours(engine), chat, row)
    if arguments.llama_server:
        return
    if "context" in parts:
        config = TurbomindEngineConfig(**settings, session_len=16384)
        with closing(Engine(str(arguments.model), config)) as engine:
            measure_context(engine, chat, row)
    if "drafts" in parts:
        measure_drafts(arguments.model, settings, chat, row)


if __name__ == "__main__":
    main()
