"""What speculation brings by kind of text: ``python -m tools.bench speculative [MODEL]``.

The same requests go to an engine that drafts nothing and to one that does, in turns. Their responses must be the same;
what differs is the time from the first token to the last.
"""

import argparse
import json
import time
from dataclasses import dataclass
from typing import Any

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.paths import default_model_dir
from tools.bench.quiet import TIMEOUT, wait_until_quiet
from tools.bench.stats import median

REPORT = """The committee met on Tuesday to discuss the budget for the coming year. The chairman, Mr. Albert Harrison,
opened the meeting by noting that revenues had fallen by twelve percent since January. Several members proposed that
the library on Elm Street be closed, but Mrs. Patricia Long objected strongly, saying that the library was the heart of
the community. After a long debate, the committee agreed to postpone the decision until the next meeting in March, and
asked the treasurer to prepare a detailed report about the costs of every public building.""".replace("\n", " ")
LETTER = """Dear Mr. Thompson, thank you for your order of three wooden chairs and one round table. We are sorry to tell
you that the table will not be delivered before the second week of October, since our workshop in Leeds was flooded.
The chairs are ready and can be collected on any weekday between nine and five. If you would like to cancel the order
of the table, please write to us before the end of this month.""".replace("\n", " ")
ACCOUNT = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
"""
TESTS = """def test_add_of_two_numbers():
    calculator = Calculator()
    assert calculator.add(1, 2) == 3

def test_subtract_of_two_numbers():
    calculator = Calculator()
    assert calculator.subtract(5, 2) == 3

"""
ENGLISH = (
    "Tell me a story about a fox and a crow in the winter.",
    "What were the main causes of the French revolution?",
    "How do I bake bread at home?",
)
PEOPLE = {
    "type": "array",
    "minItems": 6,
    "maxItems": 6,
    "items": {
        "type": "object",
        "properties": {
            "first_name": {"type": "string", "maxLength": 12},
            "family_name": {"type": "string", "maxLength": 12},
            "year_of_birth": {"type": "integer", "minimum": 1900, "maximum": 2020},
            "is_married": {"type": "boolean"},
        },
        "required": ["first_name", "family_name", "year_of_birth", "is_married"],
        "additionalProperties": False,
    },
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "people", "schema": PEOPLE}}


@dataclass(frozen=True)
class Kind:
    """Requests of one kind, asked one after the other, or at a time."""

    prompts: tuple[str, ...]
    how: GenerationConfig
    at_a_time: bool = False


def greedy(tokens: int = 160, **more: Any) -> GenerationConfig:
    """Return how the most likely tokens are taken."""
    return GenerationConfig(max_new_tokens=tokens, **more)


def sampled(tokens: int = 160) -> GenerationConfig:
    """Return how tokens are drawn, the same ones in each round."""
    return GenerationConfig(max_new_tokens=tokens, do_sample=True, temperature=0.8, random_seed=7)


KINDS = {
    "copies and edits": Kind(
        (
            f"Rewrite this text, changing 'Tuesday' to 'Friday' and nothing else:\n\n{REPORT}",
            f"Correct the spelling of this letter:\n\n{LETTER}",
            f"Repeat the following text exactly, word for word:\n\n{REPORT}",
        ),
        greedy(),
    ),
    "summaries": Kind(
        (
            f"Summarize this text in three sentences:\n\n{REPORT}",
            f"Summarize this letter for a busy reader:\n\n{LETTER}",
        ),
        greedy(),
    ),
    "code": Kind(
        (
            f"Complete this class with the methods withdraw and transfer:\n\n```python\n{ACCOUNT}```",
            f"Add tests for multiply and divide:\n\n```python\n{TESTS}```",
        ),
        greedy(),
    ),
    "JSON with a schema": Kind(
        ("Invent six people, as JSON.", "List the members of a family of six, as JSON."),
        greedy(240, response_format=SCHEMA),
    ),
    "free chat, the most likely tokens": Kind(ENGLISH, greedy()),
    "free chat": Kind(ENGLISH, sampled()),
    "16 streams of free chat": Kind(
        tuple(f"{text} ({i})" for i in range(6) for text in ENGLISH)[:16], sampled(96), True
    ),
    "16 streams of copies": Kind(
        tuple(f"Copy {i} of this text, word for word:\n\n{LETTER}" for i in range(16)), greedy(96), True
    ),
}


def run(engine: AsyncEngine, kind: Kind) -> tuple[float, list[list[int]]]:
    """Return tokens per second after the first ones, and the responses' tokens."""
    seconds = 0.0
    responses: list[list[int]] = []
    later = 0
    for prompts in [list(kind.prompts)] if kind.at_a_time else [[prompt] for prompt in kind.prompts]:
        found: list[list[int]] = [[] for _ in prompts]
        first = 0.0
        before = 0
        for response in engine.stream_infer(prompts, gen_config=kind.how):
            found[response.index].extend(response.token_ids or [])
            if first == 0.0 and all(found):
                first = time.perf_counter()
                before = sum(map(len, found))
        seconds += time.perf_counter() - first
        later += sum(map(len, found)) - before
        responses += found
    return later / seconds, responses


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--weight-bits", type=int, default=None)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--speculative-config", type=json.loads, default={"method": "ngram"})
    parser.add_argument("--only", default=None, help="kinds whose names hold this")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a quiet machine")
    arguments = parser.parse_args()

    def engine(config: dict[str, Any] | str) -> AsyncEngine:
        settings = TurbomindEngineConfig(
            dtype=arguments.dtype,
            weight_bits=arguments.weight_bits,
            session_len=2048,
            speculative_config=config,
            enable_prefix_caching=False,
        )
        return pipeline(arguments.model or str(default_model_dir()), backend_config=settings)

    with engine("none") as plain, engine(arguments.speculative_config) as drafting:
        print(
            "| kind of text | plain, tokens/s | speculating, tokens/s | ratio | accepted of drafted | tokens a step |"
        )
        print("| --- | --- | --- | --- | --- | --- |")
        for name, kind in KINDS.items():
            if arguments.only is not None and arguments.only not in name:
                continue
            rates: list[tuple[float, float]] = []
            before = drafting.engine.metrics()
            for _ in range(arguments.rounds):
                wait_until_quiet(arguments.timeout)
                (ours, responses), (theirs, expected) = run(drafting, kind), run(plain, kind)
                if responses != expected:
                    raise SystemExit(f"{name}: a response is another one with drafts")
                rates.append((ours, theirs))
            after = drafting.engine.metrics()
            grown = {key: after[key] - before[key] for key in after}
            accepted = grown["draft_tokens_accepted_total"]
            share = accepted / max(1.0, grown["draft_tokens_total"])
            steps = grown["tokens_out_total"] - accepted
            ratio = median([ours / theirs for ours, theirs in rates])
            print(
                f"| {name} | {median([theirs for _, theirs in rates]):.0f} | {median([ours for ours, _ in rates]):.0f} "
                f"| {ratio:.2f} | {share:.2f} "
                f"| {grown['tokens_out_total'] / max(1.0, steps):.2f} |",
                flush=True,
            )
