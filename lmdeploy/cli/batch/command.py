"""Options of ``lmdeploy batch``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from lmdeploy.cli import options
from lmdeploy.extras import require

_CONCURRENCY = 256


def add_parser(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "batch",
        help="Process a file of requests offline.",
        description=(
            "Process a file of requests, one per line in the format of OpenAI's Batch API "
            "(docs/guides/batches.md), with a model in this process. Finished requests are kept: run "
            "the same command again to resume."
        ),
    )
    parser.add_argument("input", type=Path, metavar="INPUT", help="Input file with the requests (.jsonl).")
    options.add_model_path(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="Output file; responses are appended to it."
    )
    parser.add_argument(
        "--errors", type=Path, metavar="FILE", help="File for failed requests (default: OUTPUT with .errors.jsonl)."
    )
    parser.add_argument(
        "--concurrency",
        type=options.positive,
        default=_CONCURRENCY,
        metavar="INT",
        help=(
            "Maximum number of requests in the engine, which runs --max-batch-size of them in a batch "
            "(default: %(default)s)."
        ),
    )
    options.add_output_parsers(parser)
    options.add_generation_config(parser)
    options.add_media_options(parser)
    parser.add_argument(
        "--log-level", default="ERROR", choices=options.LOG_LEVELS, help="Log level (default: %(default)s)."
    )
    options.add_engine_options(parser)
    options.add_model_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer the requests that have no response yet; return the exit status."""
    require("serve", "`lmdeploy batch`")
    from lmdeploy.cli.batch.running import run_file
    from lmdeploy.logs import configure

    configure(args.log_level)
    errors = args.errors or args.output.with_name(f"{args.output.stem}.errors.jsonl")
    try:
        completed, failed = run_file(args, args.output, errors)
    except KeyboardInterrupt:
        print("\nlmdeploy batch: stopped; the same command continues from here", file=sys.stderr)
        return 130
    failures = f"; {failed} failed, see {errors}" if failed else ""
    print(f"{completed} of {completed + failed} requests were answered, in {args.output}{failures}", file=sys.stderr)
    return 1 if failed else 0
