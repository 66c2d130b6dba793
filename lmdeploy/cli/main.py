"""The ``lmdeploy`` command: finds the subcommand and runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lmdeploy.cli import chat, check_env, convert, list, lite, serve
from lmdeploy.version import __version__


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="lmdeploy", description="Serve large language models on NVIDIA Triton, or run them in this process."
    )
    parser.add_argument("-v", "--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (serve, chat, convert, lite, list, check_env):
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = make_parser().parse_args(arguments)
    try:
        status: int = args.run(args)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130  # as shells report SIGINT
    return status
