"""Measure the engine in this process at fixed batch size, prompt length and output length.

For every combination: time to the first token, time between tokens (mean and percentiles), and tokens/s, where
total time includes prefill. ``--compare llama.cpp,openvino,transformers`` runs other engines in turns with ours on the
same prompts, greedily, and prints the ratios. ``python tools/profile_generation.py --help`` lists the flags.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.peers.choose import Runner, longest_request, open_peers
from tools.bench.plot import Bar, draw_bars
from tools.bench.report import print_summaries, table, write_json
from tools.bench.roofline import measure_limits, model_cost
from tools.bench.stats import Summary, median
from tools.bench.turns import COMPARISON_HEADER, compare, numbered, take_turns, throughput
from tools.bench.workload import Lengths, Request, random_requests

OURS = "lmdeploy"


@dataclass(frozen=True)
class Combination:
    """A batch size, and the lengths of its prompts and outputs."""

    batch: int
    prompt_len: int
    output_len: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.prompt_len} in, {self.output_len} out"

    def requests(self, seed: int) -> list[Request]:
        """Return one batch."""
        prompts, outputs = Lengths(self.prompt_len, self.prompt_len), Lengths(self.output_len, self.output_len)
        return random_requests(self.batch, prompts, outputs, seed)


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
    flags.add_compare(parser)
    arguments = parser.parse_args()

    sampling, seed = flags.sampling(arguments), arguments.seed
    slots = max(arguments.concurrency)
    config = flags.engine_config(arguments, slots)
    sizes = product(arguments.concurrency, arguments.prompt_tokens, arguments.completion_tokens)
    combinations = [Combination(*size) for size in sizes]
    limits = measure_limits() if arguments.compare and isinstance(config, TurbomindEngineConfig) else None
    measured: dict[Combination, dict[str, list[Summary]]] = {}
    with in_process(arguments.model_path, config) as engine:
        longest = max(
            longest_request(engine.tokenize(combination.requests(seed + turn)))
            for combination in combinations
            for turn in range(-arguments.warmup_round, 1)
        )
        bits = flags.weight_bits(config)
        with open_peers(arguments.compare, engine, Path(arguments.model_path), bits, slots, longest) as peers:
            runners: dict[str, Runner] = {OURS: lambda requests, batch: engine.run(requests, batch, sampling), **peers}
            for combination in combinations:
                print(f"-- {combination}", flush=True)
                for turn in range(-arguments.warmup_round, 0):
                    for run in runners.values():
                        run(combination.requests(seed + turn), combination.batch)
                sides = {name: _answering(run, combination, seed) for name, run in runners.items()}
                measured[combination] = take_turns(
                    sides, arguments.test_round, throughput, is_shown=not arguments.disable_tqdm
                )
        cost = model_cost(engine.spec, config) if isinstance(config, TurbomindEngineConfig) else None

    runs: dict[str, Summary] = {}
    rows: list[list[str]] = []
    ratios: dict[str, float] = {}
    for combination, sides_runs in measured.items():
        for name, rounds in sides_runs.items():
            runs |= numbered({f"{combination}: {name}" if peers else str(combination): rounds})
        for comparison in compare(sides_runs, OURS):
            title, *values = comparison.row()
            rows.append([f"{combination}: {title}", *values])
            ratios[f"{combination}: {title}"] = comparison.ratio
        if limits is not None and cost is not None:
            gap = median([run.token_latency["p50"] for run in sides_runs[OURS]])
            context = combination.prompt_len + combination.output_len / 2
            share = cost.bandwidth_share(limits, combination.batch / gap, context, combination.batch)
            rows.append([f"{combination}: the machine's bandwidth", "", "", f"{share:.2f}"])
    print_summaries(runs)
    if limits is not None:
        print(f"limits of the machine: {limits}; alongside its bandwidth is the share of it that our steps take")
    if rows:
        print(table(COMPARISON_HEADER, rows), flush=True)
    draw_bars(arguments.plot, [Bar(name, run.token_throughput) for name, run in runs.items()], "tokens/s")
    write_json(arguments.json, "profile_generation", runs, limits, ratios=ratios, **flags.engine_report(config))


def _answering(run: Runner, combination: Combination, seed: int) -> Callable[[], Summary]:
    return lambda: run(combination.requests(seed), combination.batch)


if __name__ == "__main__":
    flags.run(main)
