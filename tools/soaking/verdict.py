"""Results of a long run: numbers with their bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.stats import median, percentile
from tools.soaking.callers import Outcome
from tools.soaking.observe import Sample

SETTLED_SECONDS = 600.0  # by then, or by half of a shorter run, caches have their size


@dataclass(frozen=True)
class Verdict:
    """A run in numbers.

    Attributes
    ----------
    seconds
        How long it was.
    ends
        How often requests of each kind ended in which way.
    unanswered
        Requests without an end; must be 0.
    growth
        MiB of each process at the end over those when it had settled.
    files_growth
        File descriptors, likewise.
    left
        Cache blocks in use, running and waiting requests after all have ended; must be 0.
    gap_p50, gap_p99
        Seconds between tokens of streams.
    """

    seconds: float
    ends: dict[str, dict[str, int]]
    unanswered: int
    growth: dict[str, float]
    files_growth: dict[str, int]
    left: dict[str, float]
    gap_p50: float
    gap_p99: float

    @staticmethod
    def of(outcomes: Sequence[Outcome], samples: Sequence[Sample], last: Sample) -> Verdict:
        """Return the verdict of a run whose server was looked at all the time, and once more when it was idle."""
        ends: dict[str, Counter[str]] = {}
        for outcome in outcomes:
            ends.setdefault(outcome.name, Counter())[outcome.end] += 1
        begin, end = _settled(samples)
        names = sorted({name for sample in end for name in sample.memory})
        gaps = [gap for outcome in outcomes if outcome.name == "stream" for gap in outcome.gaps()]
        return Verdict(
            seconds=samples[-1].seconds,
            ends={name: dict(counted) for name, counted in sorted(ends.items())},
            unanswered=sum(outcome.end == "unanswered" for outcome in outcomes),
            growth={name: round(_memory(end, name) - _memory(begin, name), 1) for name in names},
            files_growth={name: round(_files(end, name) - _files(begin, name)) for name in names},
            left={name: last.measurements.get(name, -1.0) for name in ("blocks", "running", "waiting")},
            gap_p50=percentile(gaps, 50),
            gap_p99=percentile(gaps, 99),
        )

    @property
    def total_growth(self) -> float:
        """MiB of all processes."""
        return sum(self.growth.values())

    def text(self) -> str:
        """Return it for people."""
        counts = Counter[str]()
        for ends in self.ends.values():
            counts.update(ends)
        growth = ", ".join(f"{name} {value:+.1f}" for name, value in self.growth.items())
        files = ", ".join(f"{name} {value:+d}" for name, value in self.files_growth.items())
        return "\n".join(
            (
                f"{self.seconds:.0f} s, {sum(counts.values())} requests: "
                + ", ".join(f"{count} {end}" for end, count in counts.most_common()),
                f"without an end: {self.unanswered}",
                f"memory, MiB since settled: {self.total_growth:+.1f} ({growth})",
                f"file descriptors since settled: {files}",
                "left when idle: " + ", ".join(f"{value:.0f} {name}" for name, value in self.left.items()),
                f"between tokens: median {self.gap_p50 * 1000:.1f} ms, p99 {self.gap_p99 * 1000:.1f} ms",
            )
        )


def _settled(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples around the moment when the server had settled, and those at the end."""
    whole = samples[-1].seconds
    settled = min(SETTLED_SECONDS, whole / 2)
    around = [sample for sample in samples if abs(sample.seconds - settled) <= whole / 10]
    end = [sample for sample in samples if sample.seconds >= whole * 0.9]
    return around or list(samples[:1]), end


def _memory(samples: Sequence[Sample], name: str) -> float:
    return median([sample.memory.get(name, 0.0) for sample in samples])


def _files(samples: Sequence[Sample], name: str) -> float:
    return median([float(sample.files.get(name, 0)) for sample in samples])
