"""Benchmark workload, prompts and output lengths. The same seed gives the same workload everywhere."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.messages import GenerationConfig

# Common words: about one token each in every tokenizer.
WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know get through back "
    "much before go good new write our used me man too any day same right look think also around another came come "
    "work three word must because does part even place well such here take why things help put years different away "
    "again off went old number great tell men say small every found still between name should home big give air line "
    "set own under read last never us left end along while might next sound below saw something thought both few those "
    "always looked show large often together asked house world going want school important until form food keep"
).split()

GREEDY = GenerationConfig(do_sample=False)
# Settings of an engine that finds nothing in its cache and computes one token after another.
EVERY_TOKEN: dict[str, Any] = {"enable_prefix_caching": False, "speculative_config": "none"}


@dataclass(frozen=True)
class Request:
    """One prompt and how many tokens to generate after it."""

    prompt: str
    output_len: int


@dataclass(frozen=True)
class TokenRequest:
    """A prompt in tokens and how many to generate after it."""

    input_ids: tuple[int, ...]
    output_len: int


@dataclass(frozen=True)
class Lengths:
    """Inclusive bounds of random lengths, in tokens (prompts: in words, each about a token)."""

    low: int
    high: int

    def draw(self, generator: random.Random) -> int:
        """Return a length drawn uniformly."""
        return generator.randint(self.low, self.high)

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """Return the bounds in ``64`` or ``16:256``.

        Raises `ValueError` if the text is neither, or the bounds are not 1 <= low <= high.
        """
        low, _, high = text.partition(":")
        lengths = cls(int(low), int(high or low))
        if not 1 <= lengths.low <= lengths.high:
            raise ValueError(f"lengths must be 1 <= low <= high, got {text}")
        return lengths


def random_requests(count: int, prompts: Lengths, outputs: Lengths, seed: int) -> list[Request]:
    """Return requests with random words as prompts; no two prompts begin alike, so no prefix cache can help."""
    generator = random.Random(seed)
    return [
        Request(" ".join(generator.choices(WORDS, k=prompts.draw(generator))), outputs.draw(generator))
        for _ in range(count)
    ]


def token_requests(count: int, prompt_len: int, output_len: int, seed: int) -> list[TokenRequest]:
    """Return requests of exactly these lengths, random ordinary tokens as prompts.

    They are drawn from 1,000 to 30,000, where every vocabulary in use has ordinary tokens.
    """
    generator = random.Random(seed)
    return [TokenRequest(tuple(generator.choices(range(1000, 30000), k=prompt_len)), output_len) for _ in range(count)]


def dataset_requests(path: Path, count: int, outputs: Lengths, seed: int) -> list[Request]:
    """Return the first question of random conversations in a ShareGPT-style JSON file.

    ``path``: a JSON list of ``{"conversations": [{"from": "human", "value": "..."}, ...]}``. ``outputs``: bounds of the
    responses' lengths, drawn at random: real responses depend on the model that gave them.
    """
    generator = random.Random(seed)
    conversations = [entry["conversations"] for entry in json.loads(path.read_text(encoding="utf-8"))]
    questions = [turns[0]["value"] for turns in conversations if turns and turns[0]["from"] == "human"]
    if len(questions) < count:
        raise ValueError(f"{path} has {len(questions)} usable conversations, expected at least {count}")
    return [Request(question, outputs.draw(generator)) for question in generator.sample(questions, count)]
