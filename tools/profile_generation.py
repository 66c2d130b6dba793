"""Measure the engine in this process at fixed batch size, prompt length and output length.

For every combination: time to the first token, time between tokens (mean and percentiles), and tokens/s, where
total time includes prefill. ``python tools/profile_generation.py --help`` lists the flags.
"""

import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.report import print_summaries, write_json
from tools.bench.stats import Summary
from tools.bench.workload import Lengths, random_requests


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Profile token latency and throughput of the engine in this process.")
    group = parser.add_argument_group("workload")
    group.add_argument("-c", "--concurrency", type=flags.positive, nargs="+", default=[1, 4, 16], help="batch sizes")
    group.add_argument(
        "-pt", "--prompt-tokens", type=flags.positive, nargs="+", default=[32, 256], help="prompt lengths"
    )
    group.add_argument(
        "-ct", "--completion-tokens", type=flags.positive, nargs="+", default=[64], help="output lengths"
    )
    group.add_argument("-tr", "--test-round", type=flags.positive, default=2, help="measured rounds of each")
    group.add_argument("-w", "--warmup-round", type=int, default=1, help="rounds before, not measured")
    flags.add_engine(parser)
    flags.add_sampling(parser)
    arguments = parser.parse_args()

    runs: dict[str, Summary] = {}
    with in_process(arguments.model_path, flags.engine_config(arguments, max(arguments.concurrency))) as engine:
        combinations = product(arguments.concurrency, arguments.prompt_tokens, arguments.completion_tokens)
        for batch, prompt_len, output_len in combinations:
            length = Lengths(prompt_len, prompt_len), Lengths(output_len, output_len)
            for round_number in range(-arguments.warmup_round, 1):
                measured = round_number == 0
                count = batch * arguments.test_round if measured else batch
                requests = random_requests(count, *length, seed=arguments.seed + round_number)
                summary = engine.run(requests, batch, flags.sampling(arguments))
            runs[f"batch {batch}, {prompt_len} in, {output_len} out"] = summary
    print_summaries(runs)
    write_json(arguments.json, "profile_generation", runs, dtype=arguments.dtype)


if __name__ == "__main__":
    flags.run(main)
