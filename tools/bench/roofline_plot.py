"""Where the engine's steps are under the machine's roof: ``python -m tools.bench.roofline_plot --plot FILE``.

A step's arithmetic intensity is the operations of its rows in the layers' matrices over the bytes that it reads of
weights and cache (Williams et al., "Roofline", CACM 52, 2009). Left of where its roof bends memory decides, right of it
arithmetic. The roofs are measured (:mod:`tools.bench.roofline`), and lower bounds.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.matches import Match, engine_config
from tools.bench.peers.places import GGUF_TYPES
from tools.bench.plot import save, subplots
from tools.bench.report import machine, table, write_report
from tools.bench.roofline import Limits, ModelCost, measure_limits, model_cost
from tools.bench.stats import median
from tools.bench.workload import GREEDY

_STREAMS, _PROMPTS = (1, 8, 32), (512,)
_OUTPUT = 64
STEP_ROWS = 256  # of a prompt, in a step on a CPU
HEADER = ("step", "operations a byte", "10^9 operations/s", "of what its roof allows")


@dataclass(frozen=True)
class Point:
    """What one kind of step reaches.

    Attributes
    ----------
    name, bits
        What the step does, and the bits of its weights.
    intensity
        Operations for a byte read.
    rate
        Operations a second.
    """

    name: str
    bits: int
    intensity: float
    rate: float

    def roof(self, limits: Limits) -> float:
        """Return the most operations a second that the machine allows it."""
        return min(self.intensity * limits.bandwidth, peak(self.bits, limits))


def peak(bits: int, limits: Limits) -> float:
    """Return the operations a second with weights of this many bits: rounded ones meet rounded activations."""
    return limits.int8 if bits < 16 else limits.float32


def point(match: Match, cost: ModelCost, rate: float) -> Point:
    """Return where a match is that has this many tokens a second."""
    if match.part == "prefill":
        rows, context = min(STEP_ROWS, match.prompt_len), match.prompt_len / 2
        cache = cost.cache_bytes * context
    else:
        rows = match.streams
        cache = cost.cache_bytes * (match.prompt_len + match.output_len / 2) * rows
    return Point(str(match), match.bits, cost.operations * rows / (cost.weight_bytes + cache), cost.operations * rate)


def measure(model_path: str, rounds: int) -> list[Point]:
    """Return the points of every format and kind of step; a rate is the median of the rounds."""
    points = []
    for bits in GGUF_TYPES:
        config = engine_config(bits)
        matches = [Match("streams", bits, streams, 64, _OUTPUT) for streams in _STREAMS]
        matches += [Match("prefill", bits, 1, length, 1) for length in _PROMPTS]
        with in_process(model_path, config) as engine:
            cost = model_cost(engine.spec, config)
            for match in matches:
                rates = [match.rate(lambda requests, many: engine.generate(requests, many, GREEDY))]  # warms up
                rates = [
                    match.rate(lambda requests, many: engine.generate(requests, many, GREEDY)) for _ in range(rounds)
                ]
                points.append(point(match, cost, median(rates)))
                print(f"-- {match}: {median(rates):.1f} tokens/s", flush=True)
    return points


def draw(path: Path, points: Sequence[Point], limits: Limits, title: str) -> None:
    """Draw the roofs and the points, logarithmic both ways."""
    measurement, axes = subplots(1, 9, 6)
    low, high = 0.5, 2 * max(max(one.intensity for one in points), limits.int8 / limits.bandwidth)
    for top, style, name in ((limits.int8, "-", "int8"), (limits.float32, "--", "float32")):
        bend = top / limits.bandwidth
        axes.plot([low, bend, high], [low * limits.bandwidth, top, top], style, color="black", label=f"roof, {name}")
    for bits, marker in zip(sorted({one.bits for one in points}), "osD", strict=False):
        own = [one for one in points if one.bits == bits]
        axes.plot([p.intensity for p in own], [p.rate for p in own], marker, label=f"{bits}-bit weights")
        for one in own:
            name = one.name.removesuffix(f", {bits}-bit")
            axes.annotate(name, (one.intensity, one.rate), textcoords="offset points", xytext=(6, -4), fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="operations for a byte read", ylabel="operations/s", title=title)
    axes.set_xlim(low, 10 ** math.ceil(math.log10(high)))
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="lower right")
    save(measurement, path)


def main() -> None:
    """Run the command line."""
    parser = flags.parser("Measure the engine's steps alongside what memory and arithmetic of this machine allow.")
    parser.add_argument("--rounds", type=flags.positive, default=3)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them under their roofs (PNG, needs matplotlib)")
    arguments = parser.parse_args()
    limits = measure_limits()
    own = machine()
    print(f"-- machine: {own['cpu']}, kernels of {own.get('cpu_isa', 'none')}; {limits}", flush=True)
    points = measure(arguments.model_path, arguments.rounds)
    rows = [
        [one.name, f"{one.intensity:.1f}", f"{one.rate / 1e9:.0f}", f"{100 * one.rate / one.roof(limits):.0f} %"]
        for one in points
    ]
    print(table(HEADER, rows))
    write_report(arguments.json, "roofline", limits, points=[asdict(one) for one in points])
    if arguments.plot is not None:
        draw(arguments.plot, points, limits, f"{own['cpu']}, {own['cpus']} processors, {own.get('cpu_isa', '')}")


if __name__ == "__main__":
    flags.run(main)
