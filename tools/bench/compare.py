"""Comparison with other engines in one run, against the project's targets: ``python -m tools.bench peers``.

Sides take turns round by round; a ratio is the median of the rounds' ratios. A peer that is not installed is skipped,
and what is promised next to it is listed as not measured. Measure on an idle machine: llama.cpp's threads wait for each
other by spinning, so it slows down many times where anything else runs, far more than engines whose threads sleep.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tools.bench import arguments as flags
from tools.bench.matches import CACHE_BITS, CONTEXTS, LARGER_PARTS, PARTS, Choice, Rounds, play
from tools.bench.peers.paths import thread_count, why_missing
from tools.bench.quiet import TIMEOUT, wait_until_quiet
from tools.bench.random_gguf import NAMES
from tools.bench.report import machine, table, write_report
from tools.bench.roofline import measure_limits
from tools.bench.targets import HEADER, rows, targets_with, unmeasured

EVERY_PART = PARTS + LARGER_PARTS


def sizes(text: str) -> list[int]:
    """Read a flag such as ``4000,16000``."""
    return [flags.positive(size) for size in text.split(",")]


def some_of(known: Sequence[str], text: str) -> list[str]:
    """Read a flag such as ``decode,http``."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {', '.join(unknown)}")
    return names


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Measure the engine alongside llama.cpp, ik_llama.cpp and OpenVINO GenAI, against targets.")
    parser.add_argument(
        "--only", type=partial(some_of, EVERY_PART), default=list(PARTS), metavar="PART,...", help=", ".join(EVERY_PART)
    )
    parser.add_argument(
        "--models", type=partial(some_of, NAMES), default=list(NAMES), metavar="NAME,...", help="of large, moe, long"
    )
    parser.add_argument("--contexts", type=sizes, default=list(CONTEXTS), metavar="N,...", help="of long, in tokens")
    parser.add_argument("--cache-bits", type=sizes, default=list(CACHE_BITS), metavar="N,...", help="of long")
    parser.add_argument(
        "--gguf", type=Path, nargs="+", default=[], metavar="FILE", help="GGUF files to measure in place of --only"
    )
    parser.add_argument("--rounds", type=flags.positive, default=3)
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT,
        help="seconds to wait, before each measurement, for processors that are the machine's own; 0: none",
    )
    arguments = parser.parse_args()
    model_path = Path(arguments.model_path)
    rounds = Rounds(arguments.rounds, partial(wait_until_quiet, arguments.timeout))

    limits = measure_limits()
    peak = machine()
    kernels = peak.get("cpu_isa", "none")
    threads = f"{thread_count()} threads for every engine"
    print(f"-- machine: {peak['cpu']}, kernels of {kernels}, {threads}; {limits}", flush=True)
    for peer in ("llama.cpp", "openvino"):
        if reason := why_missing(peer, model_path, 4):
            print(f"-- {peer}: skipped, {reason}", flush=True)

    rates: dict[str, dict[str, list[float]]] = {}
    shares: dict[str, float] = {}
    parts = [] if arguments.gguf else arguments.only
    choice = Choice(parts, arguments.models, arguments.contexts, arguments.cache_bits, arguments.gguf)
    for name, sides, share in play(choice, model_path, rounds, limits):
        rates[name] = sides
        if share is not None:
            shares[name] = share

    promises = targets_with(peak.get("cpu_isa", ""))
    found = rows(rates, shares, promises)
    missing = unmeasured(found, list(rates), promises)
    print()
    print(table(HEADER, [row.cells() for row in found]))
    print("tokens/s (full cache: requests a minute); ratio: median of the rounds, or our share of the limit")
    for title in missing:
        print(f"not measured: {title}")
    content = {
        "rows": [asdict(row) | {"missed": row.is_missed} for row in found],
        "not_measured": missing,
    }
    write_report(arguments.json, "compare", limits, rounds=rates, **content)
