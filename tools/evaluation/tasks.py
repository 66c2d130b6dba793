"""Tasks that need no download: questions made of random numbers and words, each with one right answer.

They are asked as texts to go on with, after solved examples, so that base models and chat models can be asked alike.
An answer is the first line of what comes.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from tools.bench.workload import WORDS
from tools.passkey import make_round

PASSKEY_TOKENS = 512  # prompt and answer
MOST_ANSWER_TOKENS = 40
NAMES = ("Ann", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Irene", "Jack")
CITIES = ("Rome", "Paris", "Berlin", "Madrid", "Vienna", "London", "Boston", "Tokyo", "Cairo", "Lima")

IsRight = Callable[[str], bool]
CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Question:
    """A text to go on with, and what says whether the first line of what comes is right."""

    prompt: str
    is_right: IsRight


def arithmetic(source: random.Random, _: CountTokens) -> Question:
    """Return a sum of two numbers below 50."""
    sums = [(source.randint(2, 49), source.randint(2, 49)) for _ in range(5)]
    *solved, asked = [f"{left} + {right} = {left + right}" for left, right in sums]
    prompt = "\n".join([*solved, asked.rsplit(" ", 1)[0]])
    return Question(prompt, lambda response: _first_number(response) == sum(sums[-1]))


def copying(source: random.Random, _: CountTokens) -> Question:
    """Return a request to repeat six random words."""
    *solved, asked = [" ".join(source.sample(WORDS, 6)) for _ in range(3)]
    examples = [f"Words: {words}\nThe same words: {words}\n\n" for words in solved]
    prompt = f"{''.join(examples)}Words: {asked}\nThe same words:"
    return Question(prompt, lambda response: response.split() == asked.split())


def passkey(source: random.Random, count_tokens: CountTokens) -> Question:
    """Return a request for a number that is hidden in a text of some 400 tokens."""
    asked = make_round(count_tokens, PASSKEY_TOKENS, source)
    return Question(asked.prompt, asked.is_answered_by)


def json_objects(source: random.Random, _: CountTokens) -> Question:
    """Return a request to write what a sentence says as a JSON object of three members."""
    records = [
        {"name": source.choice(NAMES), "age": source.randint(20, 80), "city": source.choice(CITIES)} for _ in range(3)
    ]
    texts = [f"{one['name']} is {one['age']} years old and lives in {one['city']}.\nJSON:" for one in records]
    solved = [f"{text} {json.dumps(one)}\n\n" for text, one in zip(texts, records, strict=True)][:-1]
    return Question("".join([*solved, texts[-1]]), lambda response: _parsed(response) == records[-1])


TASKS: dict[str, Callable[[random.Random, CountTokens], Question]] = {
    "sums": arithmetic,
    "copying": copying,
    "passkey": passkey,
    "JSON": json_objects,
}


def questions(task: str, count: int, count_tokens: CountTokens, seed: int = 0) -> list[Question]:
    """Return this many questions of a task, always the same ones."""
    source = random.Random(f"{task} {seed}")
    return [TASKS[task](source, count_tokens) for _ in range(count)]


def share_right(asked: list[Question], responses: list[str]) -> float:
    """Return the share of answers whose first line is right."""
    lines = [text.strip().split("\n", 1)[0] for text in responses]
    return sum(one.is_right(line) for one, line in zip(asked, lines, strict=True)) / len(asked)


def _first_number(text: str) -> int | None:
    found = re.search(r"\d+", text)
    return int(found.group()) if found else None


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
