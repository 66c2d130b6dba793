"""``lmdeploy check_env``: what a bug report needs to say about the machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

FORMATS = (".json", ".yml", ".yaml", ".pkl")


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "check_env", help="Show what runs here, for a bug report.", description="Show what runs here, for a bug report."
    )
    parser.add_argument(
        "--dump-file", type=_dump_file, metavar="FILE", help="write it there too, as " + ", ".join(FORMATS)
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; return the exit status."""
    from lmdeploy.cli.environment import collect, dump

    report = collect()
    width = max(map(len, report))
    for name, value in report.items():
        print(f"{name:{width}}  {value}")
    if args.dump_file is not None:
        dump(report, args.dump_file)
    return 0


def _dump_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"the file must end in one of {', '.join(FORMATS)}, got {text}")
    return path
