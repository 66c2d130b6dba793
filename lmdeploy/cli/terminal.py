"""What the terminal chat commands share: reading messages, and sampling options."""

from __future__ import annotations

import argparse
from typing import Any

HELP = (
    "an empty line sends the message; `end` starts a new conversation; `exit` or Ctrl-D leaves; Ctrl-C stops a response"
)


_SAMPLING: dict[str, tuple[float, str]] = {
    "temperature": (0.8, "Sampling temperature; 0: greedy"),
    "top_p": (0.8, "Nucleus sampling threshold"),
    "top_k": (40, "Number of most likely tokens to sample from"),
    "repetition_penalty": (1.0, "Repetition penalty; values over 1 discourage repetition"),
}
SAMPLING_DEFAULTS: dict[str, Any] = {name: default for name, (default, _) in _SAMPLING.items()}


def add_sampling_options(parser: argparse.ArgumentParser, unless: str = "") -> None:
    """Add how responses are generated; ``unless`` says for ``--help`` when other defaults hold."""
    parser.add_argument("--meta-instruction", default=None, help="System prompt.")
    parser.add_argument(
        "--max-new-tokens", type=int, default=512, help="Maximum number of tokens per response (default: %(default)s)."
    )
    for name, (default, text) in _SAMPLING.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), help=f"{text} (default: {default:g}{unless}).")
    parser.add_argument("--seed", type=int, default=None, help="Random seed (default: random).")


def given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling parameters that were given as options."""
    return {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}


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
