"""Targets against other engines, and their verdicts.

A measurement is, for each workload, the rates of every side round by round; ours is the side ``OURS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.bench.stats import median
from tools.bench.turns import ratio

OURS = "ours"
LIMIT = "the machine's limit"
Rates = Mapping[str, Mapping[str, Sequence[float]]]

# Workload -> what it is compared with -> least ratio; alongside LIMIT: least share of it.
TARGETS: dict[str, dict[str, float]] = {
    "decode, 1 stream, 4-bit": {"llama.cpp Q4_0": 1.5, LIMIT: 0.7},
    "decode, 1 stream, 8-bit": {"llama.cpp Q8_0": 1.5},
    "decode, 1 stream, 16-bit": {"llama.cpp F16": 1.15},
    "decode, 8 streams, 4-bit": {"llama.cpp Q4_0": 2.0},
    "decode, 32 streams, 4-bit": {"llama.cpp Q4_0": 2.0, "openvino Q4_0": 2.0},
    "prefill of 512, 4-bit": {"llama.cpp Q4_0": 2.0, "openvino Q4_0": 1.1},
    "prefill of 1024, 4-bit": {"llama.cpp Q4_0": 2.0, "openvino Q4_0": 1.1},
    "prefill of 512, 8-bit": {"llama.cpp Q4_0": 2.0, "openvino Q8_0": 1.1},
    "prefill of 1024, 8-bit": {"llama.cpp Q4_0": 2.0, "openvino Q8_0": 1.1},
    "HTTP, 16 streams, 4-bit": {"llama-server Q4_0": 2.0},
    "HTTP, 16 streams, 16-bit": {"vLLM bfloat16": 1.8},
    # A median time to first token of 0.7 of theirs.
    "HTTP, 16 streams, 16-bit: first tokens": {"vLLM bfloat16": 1 / 0.7},
    **{
        f"{name}: {workload}": promised
        for name in ("llama-3.2-1b", "qwen3-4b")
        for workload, promised in {
            "decode, 1 stream, 4-bit": {"llama.cpp Q4_0": 1.3, LIMIT: 0.75},
            "decode, 1 stream, 8-bit": {"llama.cpp Q8_0": 1.0, LIMIT: 0.9},
        }.items()
    },
    "llama-3.2-1b: decode, 8 streams, 4-bit": {"llama.cpp Q4_0": 2.0, "openvino Q4_0": 2.0},
    "qwen3-30b-a3b: decode, 1 stream, 4-bit": {"llama.cpp Q4_0": 1.3, LIMIT: 0.7},
    "qwen3-30b-a3b: decode, 8 streams, 4-bit": {"llama.cpp Q4_0": 2.0},
    "llama-3.2-1b: prompt of 16000, 4-bit, 8-bit cache": {"llama.cpp Q4_0": 2.0, "openvino Q4_0": 2.0},
    "llama-3.2-1b: decode after 16000, 4-bit, 8-bit cache": {"llama.cpp Q4_0": 1.5, "openvino Q4_0": 1.5},
    # Times to first token that add up to 0.7 of theirs.
    "llama-3.2-1b: agent's day, 4-bit": {"llama-server Q4_0": 1 / 0.7},
    "full cache, 8-bit cache": {"16-bit cache": 1.2},
    "full cache, 4-bit cache": {"16-bit cache": 1.35},
}
# Where the processor has matrix units (AMX), instead of these.
TARGETS_WITH_TILES: dict[str, dict[str, float]] = TARGETS | {
    "decode, 32 streams, 4-bit": {"llama.cpp Q4_0": 2.0, "openvino Q4_0": 2.5},
    "prefill of 512, 16-bit": {"openvino F16": 1.3},
    **{f"prefill of {n}, 4-bit": {"llama.cpp Q4_0": 2.0, "openvino Q4_0": 2.0} for n in (512, 1024)},
    **{f"prefill of {n}, 8-bit": {"llama.cpp Q4_0": 2.0, "openvino Q8_0": 2.0} for n in (512, 1024)},
}


def targets_with(isa: str) -> dict[str, dict[str, float]]:
    """Return the targets where the engine's kernels are those of ``isa``."""
    return TARGETS_WITH_TILES if isa == "amx" else TARGETS


@dataclass(frozen=True)
class Row:
    """One comparison."""

    # Measured workload, and the side that it is compared with
    workload: str
    alongside: str
    # Medians of the rates; ``reference`` is None alongside the machine's limit
    served: float
    reference: float | None
    ratio: float  # median of the rounds' ratios; alongside the machine's limit the share of it
    target: float | None  # least ratio promised; None: no promise

    @property
    def is_missed(self) -> bool:
        """Whether a promise is not kept."""
        return self.target is not None and self.ratio < self.target

    def cells(self) -> list[str]:
        """Return the row under ``HEADER``."""
        promise = (
            ["-", "-"] if self.target is None else [f">= {self.target:.2f}", "missed" if self.is_missed else "met"]
        )
        reference = "-" if self.reference is None else f"{self.reference:.1f}"
        return [f"{self.workload} / {self.alongside}", f"{self.served:.1f}", reference, f"{self.ratio:.2f}", *promise]


HEADER = ("workload / alongside", "ours", "theirs", "ratio", "target", "")


def rows(rates: Rates, shares: Mapping[str, float], promises: Mapping[str, Mapping[str, float]] = TARGETS) -> list[Row]:
    """Return every comparison that was measured.

    ``rates``: by workload and side. ``shares``: of the machine's limit, by workload. ``promises``: as ``TARGETS``.
    """
    found = []
    for workload, sides in rates.items():
        targets = promises.get(workload, {})
        served = median(sides[OURS])
        for side, values in sides.items():
            if side != OURS:
                found.append(Row(workload, side, served, median(values), ratio(sides[OURS], values), targets.get(side)))
        if workload in shares:
            found.append(Row(workload, LIMIT, served, None, shares[workload], targets.get(LIMIT)))
    return found


def unmeasured(
    found: Sequence[Row], workloads: Sequence[str], promises: Mapping[str, Mapping[str, float]] = TARGETS
) -> list[str]:
    """Return the promises about these workloads that nothing was measured for, for example for want of a peer."""
    measured = {(row.workload, row.alongside) for row in found}
    promised = [(workload, alongside) for workload in workloads for alongside in promises.get(workload, {})]
    return [f"{workload} / {alongside}" for workload, alongside in promised if (workload, alongside) not in measured]
