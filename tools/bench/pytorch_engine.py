"""The PyTorch engine alongside ``transformers`` generate, of the same type: ``python -m tools.bench.pytorch_engine``.

Both are greedy and answer requests of the same lengths; they take turns, and a ratio is the median over the rounds.
"""

import sys
from pathlib import Path

from lmdeploy.messages import GenerationConfig, PytorchEngineConfig
from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.peers.hf import Transformers
from tools.bench.quiet import wait_until_quiet
from tools.bench.report import machine, print_summaries, table, write_json
from tools.bench.turns import numbered, ratio, take_turns, throughput
from tools.bench.workload import EVERY_TOKEN, Lengths, random_requests

STREAMS = 16
TARGETS = (
    ("one stream: engine / transformers", "engine, 1 stream", "transformers, 1 stream", 1.5),
    ("16 streams: engine / transformers one at a time", "engine, 16 streams", "transformers, 1 stream", 4.0),
)


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Compare the PyTorch engine with transformers.")
    parser.add_argument("--rounds", type=flags.positive, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    print(f"-- machine: {machine()}", flush=True)
    config = PytorchEngineConfig(
        dtype=arguments.dtype, max_batch_size=STREAMS, session_len=512, num_gpu_blocks=128, **EVERY_TOKEN
    )
    greedy = GenerationConfig(do_sample=False)
    single = random_requests(1, Lengths(64, 64), Lengths(96, 96), arguments.seed)
    many = random_requests(STREAMS, Lengths(64, 64), Lengths(96, 96), arguments.seed + 1)
    with in_process(arguments.model_path, config) as engine:
        peer = Transformers(Path(arguments.model_path), arguments.dtype)
        short = random_requests(STREAMS, Lengths(16, 16), Lengths(8, 8), arguments.seed + 2)
        engine.run(short, STREAMS, greedy)
        peer.one_at_a_time(short[:1])
        sides = {
            "engine, 1 stream": lambda: engine.run(single, 1, greedy),
            "transformers, 1 stream": lambda: peer.one_at_a_time(single),
            "engine, 16 streams": lambda: engine.run(many, STREAMS, greedy),
        }
        runs = take_turns(sides, arguments.rounds, throughput, before=wait_until_quiet)
    every_round = numbered(runs)
    print()
    print_summaries(every_round)
    rates = {name: [run.token_throughput for run in rounds] for name, rounds in runs.items()}
    measured = {title: ratio(rates[ours], rates[theirs]) for title, ours, theirs, _ in TARGETS}
    missed = [title for title, _, _, target in TARGETS if measured[title] < target]
    rows = [
        [title, f"{measured[title]:.2f}", f">= {target:.2f}", "missed" if title in missed else "met"]
        for title, _, _, target in TARGETS
    ]
    print()
    print(table(("tokens/s, ratio (median of the rounds)", "measured", "target", ""), rows), flush=True)
    write_json(arguments.json, "pytorch engine", every_round, ratios=measured, missed=missed)
    if missed and arguments.strict:
        sys.exit(1)


if __name__ == "__main__":
    flags.run(main)
