"""What an engine's steps spend their time on: ``python -m tools.bench.step_shares --weight-bits 4``.

Samples the threads of this process with ``perf`` (Debian's package linux-perf) while prompts are read and while streams
generate, and adds the samples up by operator. It counts time, not instructions, so that it works on virtual machines
without counters; a machine with other work on it still gives the same shares, as only this process is sampled.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from tools.bench import arguments as flags
from tools.bench.inprocess import InProcess, in_process
from tools.bench.matches import Match, engine_config
from tools.bench.report import machine, table, write_report
from tools.bench.roofline import measure_limits
from tools.bench.workload import GREEDY

_HERTZ = 997
_ENGINE = "turbomind::"
# The first that a symbol of the engine contains names its operator.
_OPERATORS = (
    ("waiting for the other threads", ("ThreadPool::work", "ThreadPool::run", "claim_and_run")),
    ("rounding of activations", ("quantize_row", "widen_row")),
    ("linear layers", ("packed_", "panel_", "dot_tile", "dot_block", "float8_", "linear", "bf16_block")),
    ("attention", ("attend", "attention", "softmax")),
    ("cache write", ("write_cache", "CacheWriter", "write_tokens")),
    ("rotation (RoPE)", ("rope", "rotate")),
    ("norms", ("norm",)),
    ("activations", ("activate",)),
    ("choice of tokens", ("argmax", "chunk_maxima", "exp_weights", "Sampler", "sample")),
)
_REST, _OUTSIDE = "the rest of the engine", "outside the engine (system, Python)"
NAMES = (*(name for name, _ in _OPERATORS), _REST, _OUTSIDE)
_LINE = re.compile(r"^\s*([0-9.]+)%\s+(?:\[.\]\s+)?(.*\S)")


def operator_of(symbol: str) -> str:
    """Return which operator a symbol of a profile belongs to."""
    if _ENGINE not in symbol:
        return _OUTSIDE
    return next((name for name, parts in _OPERATORS if any(part in symbol for part in parts)), _REST)


def shares(report: Iterable[str]) -> dict[str, float]:
    """Return each operator's share of a profile: lines of ``perf report --sort symbol``, percent and symbol."""
    added: Counter[str] = Counter()
    for line in report:
        if found := _LINE.match(line):
            added[operator_of(found[2])] += float(found[1])  # type: ignore[assignment]
    return {name: added[name] / 100 for name in NAMES}


def sampled(work: Callable[[], object]) -> dict[str, float]:
    """Return the shares of what ``work`` does in this process's threads."""
    with tempfile.TemporaryDirectory() as directory:
        data = str(Path(directory) / "perf.data")
        command = ["perf", "record", "-q", "-e", "cpu-clock:u", "-F", str(_HERTZ), "-p", str(os.getpid()), "-o", data]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as recorder:
            try:
                work()
            finally:
                recorder.send_signal(signal.SIGINT)
                recorder.wait()
        command = ["perf", "report", "-q", "-i", data, "--stdio", "--no-children", "--sort", "symbol"]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return shares(report.splitlines())


def _answer(engine: InProcess, match: Match, times: int) -> None:
    for _ in range(times):
        match.rate(lambda requests, many: engine.generate(requests, many, GREEDY))


def measure(model_path: str, bits: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the shares of a prompt's steps and of those of 32 streams, their prompts included."""
    found = {}
    with in_process(model_path, engine_config(bits)) as engine:
        for match, times in ((Match("prefill", bits, 1, 512, 1), 8), (Match("streams", bits, 32, 64, 64), 1)):
            _answer(engine, match, 1)  # warms up
            found[str(match)] = sampled(partial(_answer, engine, match, times * repeats))
    return found


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Sample what the engine's steps spend their time on.")
    parser.add_argument("--weight-bits", type=int, nargs="+", choices=(4, 8, 16), default=[4, 8, 16])
    parser.add_argument("--repeats", type=flags.positive, default=4)
    arguments = parser.parse_args()
    if shutil.which("perf") is None:
        raise SystemExit("perf is not installed: it comes in Debian's package linux-perf")
    own = machine()
    print(f"-- machine: {own['cpu']}, kernels of {own.get('cpu_isa', 'none')}", flush=True)
    found: dict[str, dict[str, float]] = {}
    for bits in arguments.weight_bits:
        found |= measure(arguments.model_path, bits, arguments.repeats)
    rows = [[name, *(f"{100 * step[name]:.1f} %" for step in found.values())] for name in NAMES]
    print(table(["share of the time", *found], rows))
    write_report(arguments.json, "step shares", measure_limits(), shares=found)


if __name__ == "__main__":
    flags.run(main)
