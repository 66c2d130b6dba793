"""The standard set (`make bench`): the engine, ``transformers`` and the served path, on one machine in one run.

Everything is float32 and greedy. What is compared takes turns, round by round, so that a noisy machine disturbs both
sides; a ratio is the median over the rounds.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.over_http import run_over_http
from tools.bench.peers.hf import Transformers
from tools.bench.report import machine, print_summaries, table, write_json
from tools.bench.server import running_server
from tools.bench.stats import Summary
from tools.bench.turns import numbered, ratio, take_turns, throughput
from tools.bench.workload import EVERY_TOKEN, Lengths, random_requests
from tools.cache_capacity import print_table as print_cache_capacity

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


def measure(model_path: str, rounds: int, seed: int) -> Runs:
    """Run the whole set.

    Returns
    -------
    dict[str, list[Summary]]
        The rounds of each run, by the names that ``TARGETS`` uses.
    """
    config = TurbomindEngineConfig(dtype="float32", max_batch_size=STREAMS, cache_max_entry_count=0.05, **EVERY_TOKEN)
    greedy = GenerationConfig(do_sample=False)
    single = random_requests(1, Lengths(64, 64), Lengths(96, 96), seed)
    many = random_requests(2 * STREAMS, Lengths(16, 128), Lengths(32, 128), seed + 1)
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
        print(f"-- {rounds} rounds", flush=True)
        sides = {
            "engine, 1 stream": lambda: engine.run(single, 1, greedy),
            "transformers, 1 stream": lambda: peer.one_at_a_time(single),
            "engine, 16 streams": lambda: engine.run(many, STREAMS, greedy),
            "served, 16 streams": lambda: run_over_http(url, many, STREAMS, greedy),
        }
        runs = take_turns(sides, rounds, throughput)
        print("-- transformers on the requests of the 16 streams (about 4 minutes)", flush=True)
        once = {
            "transformers, static batches": lambda: peer.static_batches(many, STREAMS),
            "transformers, one at a time": lambda: peer.one_at_a_time(many),
        }
        return runs | take_turns(once, 1, throughput)


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Run the standard benchmark.")
    parser.add_argument("--rounds", type=flags.positive, default=3)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    print(f"-- machine: {machine()}", flush=True)
    runs = measure(arguments.model_path, arguments.rounds, arguments.seed)

    every_round = numbered(runs)
    print()
    print_summaries(every_round)
    rates = {name: [run.token_throughput for run in rounds] for name, rounds in runs.items()}
    measured = {title: ratio(rates[ours], rates[peer]) for title, ours, peer, _ in TARGETS}
    others = {title: ratio(rates[ours], rates[peer]) for title, ours, peer in OTHER_RATIOS}
    missed = [title for title, _, _, target in TARGETS if measured[title] < target]
    rows = [
        [title, f"{measured[title]:.2f}", f">= {target:.2f}", "missed" if title in missed else "met"]
        for title, _, _, target in TARGETS
    ]
    rows += [[title, f"{value:.2f}", "-", "-"] for title, value in others.items()]
    print()
    print(table(("tokens/s, ratio (median of the rounds)", "measured", "target", ""), rows), flush=True)
    print()
    print_cache_capacity()
    write_json(arguments.json, "standard", every_round, ratios={**measured, **others}, missed=missed)
    if missed and arguments.strict:
        sys.exit(1)


if __name__ == "__main__":
    flags.run(main)
