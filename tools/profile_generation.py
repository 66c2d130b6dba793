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
from tools.bench.report import print_summaries, progress_bar, write_json
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
    flags.add_progress(parser)
    flags.add_engine(parser)
    flags.add_sampling(parser)
    arguments = parser.parse_args()

    sampling = flags.sampling(arguments)
    config = flags.engine_config(arguments, max(arguments.concurrency))
    runs = {}
    sizes = list(product(arguments.concurrency, arguments.prompt_tokens, arguments.completion_tokens))
    rounds = range(1 - arguments.warmup_round, arguments.test_round + 1)
    total = len(sizes) * len(rounds)
    with (
        in_process(arguments.model_path, config) as engine,
        progress_bar(total, "run", is_shown=not arguments.disable_tqdm) as advance,
    ):
        for (batch, prompt_len, output_len), number in product(sizes, rounds):
            lengths = Lengths(prompt_len, prompt_len), Lengths(output_len, output_len)
            run = engine.run(random_requests(batch, *lengths, arguments.seed + number), batch, sampling)
            if number > 0:
                runs[f"batch {batch}, {prompt_len} in, {output_len} out ({number})"] = run
            advance()
    print_summaries(runs)
    write_json(arguments.json, "profile_generation", runs, **flags.engine_report(config))


if __name__ == "__main__":
    flags.run(main)
