"""Saying what takes a while."""

import sys


def say(text: str) -> None:
    """Print a line on stderr at once: stdout belongs to what a command answers."""
    print(text, file=sys.stderr, flush=True)
