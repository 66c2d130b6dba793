"""The ``lmdeploy`` command: finds the subcommand and runs it."""

from __future__ import annotations

from collections.abc import Sequence

from lmdeploy.cli import chat, check_env, convert, list, lite, models, new_family, plan, pull, serve
from lmdeploy.cli.batch import command as batch
from lmdeploy.cli.batch import warm
from lmdeploy.cli.parser import Parser, exit_status, print_help_of
from lmdeploy.version import __version__


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="lmdeploy", description="Serve large language models on NVIDIA Triton, or run them in this process."
    )
    parser.add_argument("-v", "--version", action="version", version=__version__)
    parser.set_defaults(run=print_help_of(parser))
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (serve, chat, batch, warm, pull, models, convert, lite, plan, list, new_family, check_env):
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = make_parser()
    args = parser.parse_everything(arguments)
    return exit_status(parser.innermost.prog, lambda: args.run(args))
