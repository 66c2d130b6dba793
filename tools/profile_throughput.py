"""Measure an engine in this process on requests of random lengths: ``profile_throughput.py [DATASET] MODEL``.

``DATASET`` is a ShareGPT-style JSON whose first questions are asked; without one prompts are random words.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.report import print_summaries, progress_bar, write_json


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Profile request throughput of an engine in this process.", takes_dataset=True)
    parser.add_argument("--rounds", type=flags.positive, default=1, help="how often to measure")
    flags.add_progress(parser)
    flags.add_workload(parser)
    flags.add_engine(parser)
    flags.add_sampling(parser)
    arguments = parser.parse_args()

    requests, concurrency, sampling = flags.requests(arguments), arguments.concurrency, flags.sampling(arguments)
    config = flags.engine_config(arguments, concurrency)
    runs = {}
    with in_process(arguments.model_path, config) as engine:
        engine.run(requests[:concurrency], concurrency, sampling)  # warm up
        for number in range(1, arguments.rounds + 1):
            with progress_bar(len(requests), "request", is_shown=not arguments.disable_tqdm) as advance:
                runs[f"round {number}"] = engine.run(requests, concurrency, sampling, advance)
    print_summaries(runs)
    write_json(arguments.json, "profile_throughput", runs, **flags.engine_report(config))


if __name__ == "__main__":
    flags.run(main)
