"""Measure the whole served path: HTTP streaming through gateway and Triton.

Starts a server of its own unless ``--base-url`` names one. ``--compare inprocess`` answers the same requests with the
engine in this process too, in turns with the server, and prints what share of its throughput the server reaches.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.over_http import run_over_http
from tools.bench.progress import progress_bar
from tools.bench.report import print_summaries, write_json
from tools.bench.server import running_server
from tools.bench.stats import Summary, median


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Profile the gateway and Triton over HTTP.")
    parser.add_argument("--base-url", help="of a running gateway, e.g. http://127.0.0.1:23333; default: start one")
    parser.add_argument("--compare", choices=["inprocess"], help="measure the engine in this process in turns with it")
    parser.add_argument("--rounds", type=flags.positive, default=1, help="how often to measure")
    flags.add_progress(parser)
    flags.add_workload(parser)
    flags.add_engine(parser)
    flags.add_sampling(parser)
    arguments = parser.parse_args()

    requests = flags.requests(arguments)
    concurrency, sampling = arguments.concurrency, flags.sampling(arguments)
    config = flags.engine_config(arguments, concurrency)
    runs: dict[str, Summary] = {}
    shares: list[float] = []
    with ExitStack() as stack:
        url = arguments.base_url or stack.enter_context(running_server(arguments.model_path, config))
        engine = stack.enter_context(in_process(arguments.model_path, config)) if arguments.compare else None
        run_over_http(url, requests[:concurrency], concurrency, sampling)  # warm up
        total = len(requests) * arguments.rounds * (1 if engine is None else 2)
        with progress_bar(total, "request", is_shown=not arguments.disable_tqdm) as advance:
            for number in range(1, arguments.rounds + 1):
                served = runs[f"served {number}"] = run_over_http(url, requests, concurrency, sampling, advance)
                if engine is not None:
                    alone = runs[f"in process {number}"] = engine.run(requests, concurrency, sampling, advance)
                    shares.append(served.token_throughput / alone.token_throughput)
    print_summaries(runs)
    if shares:
        print(f"served / in process: {100 * median(shares):.1f} % of the tokens/s (median of {len(shares)} rounds)")
    write_json(arguments.json, "profile_serving", runs, dtype=arguments.dtype, shares=shares)


if __name__ == "__main__":
    flags.run(main)
