"""What the commands that chat in a terminal share: reading messages, and how to sample answers."""

from __future__ import annotations

import argparse

HELP = (
    "an empty line sends the message; `end` starts a new conversation; `exit` or Ctrl-D leaves; Ctrl-C stops an answer"
)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add how answers are generated."""
    parser.add_argument("--meta-instruction", default=None, help="system prompt")
    parser.add_argument(
        "--max-new-tokens", type=int, default=512, help="most tokens of an answer (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=0.8, help="nucleus (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=40, help="most likely tokens kept (default: %(default)s)")
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.0, help="over 1 discourages repetition (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of the answers (default: random)")


def read_message() -> str | None:
    """Return the lines up to an empty one; None when the user leaves."""
    lines: list[str] = []
    try:
        while True:
            line = input("" if lines else ">>> ")
            if not lines and line.strip() == "exit":
                return None
            if line:
                lines.append(line)
            elif lines:
                return "\n".join(lines)
    except (EOFError, KeyboardInterrupt):
        print()
        return "\n".join(lines) or None
