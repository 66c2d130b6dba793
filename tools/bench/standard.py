"""The standard set (`make bench`): the engine, ``transformers`` and the served path, on one machine in one run.

Everything is float32 and greedy. What is compared takes turns, round by round, so that a noisy machine disturbs both
sides; a ratio is the median over the rounds.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.over_http import run_over_http
from tools.bench.peers import Transformers
from tools.bench.report import machine, print_summaries, table, write_json
from tools.bench.server import running_server
from tools.bench.stats import Summary, median
from tools.bench.workload import Lengths, random_requests

STREAMS = 16
# What the project promises on the machine it is measured on.
TARGETS = (
    ("one stream: engine / transformers", "engine, 1 stream", "transformers, 1 stream", 1.5),
    ("16 streams: engine / transformers one at a time", "engine, 16 streams", "transformers, one at a time", 6.0),
    ("16 streams: gateway and Triton / engine", "served, 16 streams", "engine, 16 streams", 0.85),
)
# Worth knowing, promised nowhere.
OTHER_RATIOS = (
    ("16 streams: engine / transformers in static batches of 16", "engine, 16 streams", "transformers, static batches"),
)

Runs = dict[str, list[Summary]]


def ratio(runs: Runs, ours: str, peer: str) -> float:
    """Return the median over the rounds of our tokens/s over the peer's; a side measured less often repeats."""
    mine, other = runs[ours], runs[peer]
    rounds = max(len(mine), len(other))
    return median(
        [mine[i % len(mine)].token_throughput / other[i % len(other)].token_throughput for i in range(rounds)]
    )


def measure(model_path: str, rounds: int, seed: int) -> Runs:
    """Run the whole set.

    Returns
    -------
    dict[str, list[Summary]]
        The rounds of each run, by the names that ``TARGETS`` uses.
    """
    config = TurbomindEngineConfig(dtype="float32", max_batch_size=STREAMS, cache_max_entry_count=0.05)
    greedy = GenerationConfig(do_sample=False)
    single = random_requests(1, Lengths(64, 64), Lengths(96, 96), seed)
    many = random_requests(2 * STREAMS, Lengths(16, 128), Lengths(32, 128), seed + 1)
    runs: Runs = {}

    def note(name: str, run: Callable[[], Summary]) -> None:
        summary = run()
        runs.setdefault(name, []).append(summary)
        print(f"   {name}: {summary.token_throughput:.1f} tokens/s", flush=True)

    with ExitStack() as stack:
        print("-- starting the server and loading the models", flush=True)
        url = stack.enter_context(running_server(model_path, config))
        engine = stack.enter_context(in_process(model_path, config))
        peer = Transformers(Path(model_path))
        print("-- warming up", flush=True)
        short = random_requests(STREAMS, Lengths(16, 16), Lengths(8, 8), seed + 2)
        engine.run(short, STREAMS, greedy)
        run_over_http(url, short, STREAMS, greedy)
        peer.one_at_a_time(short[:1])
        for number in range(1, rounds + 1):
            print(f"-- round {number} of {rounds}", flush=True)
            note("engine, 1 stream", lambda: engine.run(single, 1, greedy))
            note("transformers, 1 stream", lambda: peer.one_at_a_time(single))
            note("engine, 16 streams", lambda: engine.run(many, STREAMS, greedy))
            note("served, 16 streams", lambda: run_over_http(url, many, STREAMS, greedy))
        print("-- transformers on the requests of the 16 streams (about 4 minutes)", flush=True)
        note("transformers, static batches", lambda: peer.static_batches(many, STREAMS))
        note("transformers, one at a time", lambda: peer.one_at_a_time(many))
    return runs


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Run the standard benchmark.")
    parser.add_argument("--rounds", type=flags.positive, default=3)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    print(f"-- machine: {machine()}", flush=True)
    runs = measure(arguments.model_path, arguments.rounds, arguments.seed)

    every_round = {
        name if len(rounds) == 1 else f"{name} ({number})": summary
        for name, rounds in runs.items()
        for number, summary in enumerate(rounds, 1)
    }
    print()
    print_summaries(every_round)
    measured = {title: ratio(runs, ours, peer) for title, ours, peer, _ in TARGETS}
    others = {title: ratio(runs, ours, peer) for title, ours, peer in OTHER_RATIOS}
    missed = [title for title, _, _, target in TARGETS if measured[title] < target]
    rows = [
        [title, f"{measured[title]:.2f}", f">= {target:.2f}", "missed" if title in missed else "met"]
        for title, _, _, target in TARGETS
    ]
    rows += [[title, f"{value:.2f}", "-", "-"] for title, value in others.items()]
    print()
    print(table(("tokens/s, ratio (median of the rounds)", "measured", "target", ""), rows), flush=True)
    write_json(arguments.json, "standard", every_round, ratios={**measured, **others}, missed=missed)
    if missed and arguments.strict:
        sys.exit(1)


if __name__ == "__main__":
    flags.run(main)
