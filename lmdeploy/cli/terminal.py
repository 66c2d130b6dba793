"""Input and sampling options of the terminal chat commands."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

HELP = (
    'Enter sends the message; a `\\` at the end of a line, or `"""` around several lines, continues it; `end` starts a '
    "new conversation; `exit` or Ctrl-D leaves; Ctrl-C stops a response"
)
_QUOTES = '"""'

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


def talk(name: str, respond: Callable[[str], None], start_again: Callable[[], None]) -> None:
    """Take messages until the user leaves.

    ``name``: the model's, shown first. ``respond``: prints the response to a message. ``start_again``: forgets the
    conversation.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (editing and history for input())
    print(f"{name}: {HELP}")
    while (text := read_message()) is not None:
        if text == "end":
            start_again()
            print("(new conversation)")
        elif text:
            respond(text)


def read_message() -> str | None:
    """Return a message, which may be empty; None when the user leaves."""
    lines: list[str] = []
    is_quoted = False
    while True:
        try:
            line = input("... " if lines else ">>> ")
        except KeyboardInterrupt:
            print("\n(`exit` or Ctrl-D leaves)")
            return ""
        except EOFError:
            print()
            return "\n".join(lines).strip() or None
        if not lines and line.strip() == "exit":
            return None
        if not lines and line.startswith(_QUOTES):
            is_quoted, line = True, line.removeprefix(_QUOTES)
        ending = _QUOTES if is_quoted else "\\"
        is_marked = line.endswith(ending)
        lines.append(line.removesuffix(ending))
        if is_marked == is_quoted:
            return "\n".join(lines).strip()
