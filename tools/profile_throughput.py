"""Measure the engine in this process on requests of random lengths.

``--compare transformers`` answers the same requests with ``transformers`` generate (float32) in the same run, one at a
time and in static batches of ``--concurrency``, and prints the ratios.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.peers import Transformers
from tools.bench.report import print_summaries, write_json
from tools.bench.stats import Summary


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Profile request throughput of the engine in this process.")
    flags.add_workload(parser)
    flags.add_engine(parser)
    flags.add_sampling(parser)
    parser.add_argument("--compare", choices=["transformers"], help="run a peer on the same requests")
    arguments = parser.parse_args()

    requests = flags.requests(arguments)
    runs: dict[str, Summary] = {}
    with in_process(arguments.model_path, flags.engine_config(arguments, arguments.concurrency)) as engine:
        engine.run(requests[: arguments.concurrency], arguments.concurrency, flags.sampling(arguments))  # warm up
        runs["lmdeploy"] = engine.run(requests, arguments.concurrency, flags.sampling(arguments))
    if arguments.compare == "transformers":
        peer = Transformers(Path(arguments.model_path))
        runs["transformers, one at a time"] = peer.one_at_a_time(requests)
        runs["transformers, static batches"] = peer.static_batches(requests, arguments.concurrency)
    print_summaries(runs)
    ours = runs["lmdeploy"].token_throughput
    ratios = {name: ours / run.token_throughput for name, run in runs.items() if name != "lmdeploy"}
    for name, ratio in ratios.items():
        print(f"lmdeploy / {name}: {ratio:.2f} times the tokens/s")
    write_json(arguments.json, "profile_throughput", runs, dtype=arguments.dtype, ratios=ratios)


if __name__ == "__main__":
    flags.run(main)
