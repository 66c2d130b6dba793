"""Measure whether a model finds a number hidden in a long text (passkey retrieval).

``python tools/passkey.py MODEL --session-len 16384 --rope-scaling-factor 2.5`` hides a number in a text that fills the
session, asks for it, and repeats that with other numbers and places. ``--help`` lists the flags.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench import arguments as flags

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

TASK = (
    "Somewhere in the many unimportant sentences that follow, one piece of important information is hidden. "
    "Find it and keep it in mind: you will be asked for it."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = "What is the pass key? The pass key is"
RESERVED_TOKENS = 128  # of the session: template, task, question and answer
LARGEST_KEY = 50000


@dataclass(frozen=True)
class Round:
    """One prompt, and the number in it."""

    prompt: str
    key: int
    depth: float  # where the number is, from 0 (beginning) to 1 (end)

    def is_answered_by(self, text: str) -> bool:
        """Return whether the first number of an answer is the key."""
        found = re.search(r"\d+", text)
        return found is not None and int(found.group()) == self.key


def make_round(count_tokens: Callable[[str], int], session_len: int, source: random.Random) -> Round:
    """Return a prompt that fills a session of ``session_len`` tokens.

    Parameters
    ----------
    count_tokens
        Length of a text in tokens.
    session_len
        Tokens, prompt and answer.
    source
        Of the number and its place.

    Raises
    ------
    ValueError
        If nothing fits into so short a session.
    """
    key = source.randint(1, LARGEST_KEY)
    information = f"The pass key is {key}. Remember it. {key} is the pass key."
    frame = count_tokens(" ".join([TASK, information, QUESTION]))
    repeats = (session_len - RESERVED_TOKENS - frame) // count_tokens(" " + FILLER)
    if repeats < 1:
        raise ValueError(f"session_len must leave room for the filler, got {session_len}; use {frame + 256} or more")
    before = source.randint(0, repeats)
    lines = [TASK, *[FILLER] * before, information, *[FILLER] * (repeats - before), QUESTION]
    return Round(" ".join(lines), key, before / repeats)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 when every number was found."""
    parser = argparse.ArgumentParser(description="Measure passkey retrieval in long texts.")
    parser.add_argument("model_path", nargs="?", default="", help="checkpoint; default: the default model")
    parser.add_argument("--session-len", type=int, default=4096, help="tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of numbers and places (default: %(default)s)")
    parser.add_argument(
        "--rope-scaling-factor", type=float, default=0.0, help="dynamic NTK (default: as the model says)"
    )
    parser.add_argument("--use-logn-attn", action="store_true", help="scale attention by the logarithm of the position")
    args = parser.parse_args(arguments)

    from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline

    config = TurbomindEngineConfig(
        session_len=args.session_len,
        rope_scaling_factor=args.rope_scaling_factor,
        use_logn_attn=args.use_logn_attn,
        max_batch_size=1,
    )
    found = 0
    with pipeline(args.model_path, backend_config=config) as pipe:
        source = random.Random(args.seed)
        for _ in range(args.rounds):
            asked = make_round(lambda text: len(pipe.tokenizer.encode(text, add_bos=False)), args.session_len, source)
            start = time.perf_counter()
            response = pipe(asked.prompt, GenerationConfig(max_new_tokens=16))
            seconds = time.perf_counter() - start
            is_right = asked.is_answered_by(response.text)
            found += is_right
            print(
                f"{'found ' if is_right else 'missed'} {asked.key:5} at depth {asked.depth:.2f} of "
                f"{response.input_token_len} tokens in {seconds:.1f} s: {response.text!r}"
            )
    print(f"{found} of {args.rounds} found")
    return 0 if found == args.rounds else 1


if __name__ == "__main__":
    flags.run(main)
