"""The standard set (``python -m tools.bench engine``, `make bench`): an engine, ``transformers`` and the served path.

Everything is of one type and greedy. What is compared takes turns, round by round, so that a noisy machine disturbs
both sides; a ratio is the median over the rounds.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.turbomind.engine_settings import EngineConfig
from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.over_http import run_over_http
from tools.bench.peers.hf import Transformers
from tools.bench.quiet import TIMEOUT, wait_until_quiet
from tools.bench.report import machine, print_summaries, table, write_json
from tools.bench.server import running_server
from tools.bench.stats import Summary
from tools.bench.turns import numbered, ratio, take_turns, throughput
from tools.bench.workload import EVERY_TOKEN, GREEDY, Lengths, random_requests

STREAMS = 16
_ONE = ("one stream: engine / transformers", "engine, 1 stream", "transformers, 1 stream", 1.5)
# Targets on the machine of the measurement: title, served, reference, least ratio.
TARGETS = {
    "turbomind": (
        _ONE,
        ("16 streams: engine / transformers one at a time", "engine, 16 streams", "transformers, one at a time", 6.0),
        ("16 streams: gateway and Triton / engine", "served, 16 streams", "engine, 16 streams", 0.85),
    ),
    "pytorch": (
        _ONE,
        ("16 streams: engine / transformers one at a time", "engine, 16 streams", "transformers, 1 stream", 4.0),
    ),
}

Runs = dict[str, list[Summary]]


def measure(backend: str, dtype: str, model_path: str, rounds: int, seed: int, pause: Callable[[], None]) -> Runs:
    """Run the whole set.

    Returns the rounds of each run, by the names that ``TARGETS`` uses.
    """
    config: EngineConfig = TurbomindEngineConfig(
        dtype=dtype, max_batch_size=STREAMS, cache_max_entry_count=0.05, **EVERY_TOKEN
    )
    if backend == "pytorch":
        config = PytorchEngineConfig(
            dtype=dtype, max_batch_size=STREAMS, session_len=512, num_gpu_blocks=128, **EVERY_TOKEN
        )
    single = random_requests(1, Lengths(64, 64), Lengths(96, 96), seed)
    many = random_requests(2 * STREAMS, Lengths(16, 128), Lengths(32, 128), seed + 1)
    if backend == "pytorch":
        many = random_requests(STREAMS, Lengths(64, 64), Lengths(96, 96), seed + 1)
    short = random_requests(STREAMS, Lengths(16, 16), Lengths(8, 8), seed + 2)
    with ExitStack() as stack:
        print("-- starting and loading", flush=True)
        engine = stack.enter_context(in_process(model_path, config))
        peer = Transformers(Path(model_path), dtype)
        sides = {
            "engine, 1 stream": lambda: engine.run(single, 1, GREEDY),
            "transformers, 1 stream": lambda: peer.one_at_a_time(single),
            "engine, 16 streams": lambda: engine.run(many, STREAMS, GREEDY),
        }
        engine.run(short, STREAMS, GREEDY)  # warms up
        peer.one_at_a_time(short[:1])
        if backend == "pytorch":
            return take_turns(sides, rounds, throughput, pause)
        url = stack.enter_context(running_server(model_path, config))
        run_over_http(url, short, STREAMS, GREEDY)
        sides["served, 16 streams"] = lambda: run_over_http(url, many, STREAMS, GREEDY)
        runs = take_turns(sides, rounds, throughput, pause)
        print("-- transformers on the requests of the 16 streams (about 3 minutes)", flush=True)
        return runs | take_turns(
            {"transformers, one at a time": lambda: peer.one_at_a_time(many)}, 1, throughput, pause
        )


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Run the standard benchmark.")
    parser.add_argument("--backend", choices=TARGETS, default="turbomind", help="which engine")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--rounds", type=flags.positive, default=3)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a quiet machine; 0: none")
    given = parser.parse_args()
    print(f"-- machine: {machine()}", flush=True)
    pause = partial(wait_until_quiet, given.timeout)
    runs = measure(given.backend, given.dtype, given.model_path, given.rounds, given.seed, pause)
    print()
    print_summaries(numbered(runs))
    rates = {name: [run.token_throughput for run in rounds] for name, rounds in runs.items()}
    measured, missed, rows = {}, [], []
    for title, served, reference, min_ratio in TARGETS[given.backend]:
        found = measured[title] = ratio(rates[served], rates[reference])
        if found < min_ratio:
            missed.append(title)
        rows.append([title, f"{found:.2f}", f">= {min_ratio:.2f}", "missed" if found < min_ratio else "met"])
    print()
    print(table(("tokens/s, ratio (median of the rounds)", "measured", "target", ""), rows), flush=True)
    write_json(given.json, f"engine {given.backend}", numbered(runs), ratios=measured, missed=missed)
