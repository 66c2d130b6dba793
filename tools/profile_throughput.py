"""Measure an engine in this process on requests of random lengths: ``profile_throughput.py [DATASET] MODEL``.

``DATASET`` is a ShareGPT-style JSON whose first questions are asked; without one prompts are random words.

``--compare llama.cpp,openvino,transformers`` answers the same requests with other engines in the same run, in turns
with ours and greedily, and prints the ratios: llama.cpp through its server, OpenVINO GenAI with continuous batching,
``transformers`` generate (float32) one request at a time and in static batches of ``--concurrency``.
"""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.peers.choose import longest_request, open_peers
from tools.bench.plot import Bar, draw_bars
from tools.bench.progress import progress_bar
from tools.bench.report import print_summaries, table, write_json
from tools.bench.roofline import measure_limits, model_cost
from tools.bench.stats import Summary, mean, median
from tools.bench.turns import COMPARISON_HEADER, compare, numbered, take_turns, throughput

OURS = "lmdeploy"


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Profile request throughput of an engine in this process.", takes_dataset=True)
    parser.add_argument("--rounds", type=flags.positive, default=1, help="how often to measure every side")
    flags.add_progress(parser)
    flags.add_workload(parser)
    flags.add_engine(parser)
    flags.add_sampling(parser)
    flags.add_compare(parser)
    arguments = parser.parse_args()

    requests, concurrency = flags.requests(arguments), arguments.concurrency
    model_path, sampling = Path(arguments.model_path), flags.sampling(arguments)
    config = flags.engine_config(arguments, concurrency)
    limits = measure_limits() if arguments.compare and isinstance(config, TurbomindEngineConfig) else None
    with in_process(arguments.model_path, config) as engine:
        tokens = engine.tokenize(requests)
        peers = open_peers(
            arguments.compare, engine, model_path, flags.weight_bits(config), concurrency, longest_request(tokens)
        )
        with peers as runners:

            def ours() -> Summary:
                with progress_bar(len(requests), "request", is_shown=not arguments.disable_tqdm) as advance:
                    return engine.run(requests, concurrency, sampling, advance)

            sides: dict[str, Callable[[], Summary]] = {OURS: ours}
            for name, run in runners.items():
                sides[name] = lambda run=run: run(requests, concurrency)  # type: ignore[misc]
            engine.run(requests[:concurrency], concurrency, sampling)  # warm up
            for run in runners.values():
                run(requests[: min(2, concurrency)], concurrency)
            runs = take_turns(sides, arguments.rounds, throughput)
        cost = model_cost(engine.spec, config) if isinstance(config, TurbomindEngineConfig) else None
    print_summaries(numbered(runs))
    comparisons = compare(runs, OURS)
    if comparisons:
        print(table(COMPARISON_HEADER, [comparison.row() for comparison in comparisons]))
    if limits is not None and cost is not None:
        context = mean([len(request.input_ids) + request.output_len / 2 for request in tokens])
        rate = median([run.token_throughput for run in runs[OURS]])
        share = cost.bandwidth_share(limits, rate, context, concurrency)
        print(f"{OURS} reads weights and cache at {100 * share:.0f} % of the bandwidth, prefill included ({limits})")
    bars = [Bar(name, run.token_throughput) for name, run in numbered(runs).items()]
    draw_bars(arguments.plot, bars, "tokens/s")
    ratios = {comparison.peer: comparison.ratio for comparison in comparisons}
    write_json(
        arguments.json, "profile_throughput", numbered(runs), limits, ratios=ratios, **flags.engine_report(config)
    )


if __name__ == "__main__":
    flags.run(main)
