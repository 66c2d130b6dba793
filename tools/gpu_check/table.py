"""The targets, and the table in which each has a row: measured, or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.bench.report import table

_SHARE_OF_BANDWIDTH = "of the copy bandwidth"
_SHARE_OF_PEAK = "of the peak of its matrix products"
NOT_MEASURED = "not measured"
SELF_CHECK = "self-check of "  # how rows of kernels under self-check begin


@dataclass(frozen=True)
class Target:
    """A row of the table: the finding it shows, what it is, and the least value that is promised, if one is."""

    row: str
    text: str
    least: float | None = None


TARGETS = (
    Target("llama-8b: decode 1 x 128, bandwidth", f"decode, batch 1, bfloat16, 8B: {_SHARE_OF_BANDWIDTH}", 0.85),
    Target("llama-8b: decode 64 x 2048, bandwidth", f"decode, batch 64, context 2k: {_SHARE_OF_BANDWIDTH}", 0.80),
    Target("llama-8b: decode 64 x 2048, busy", "the same: time in which the GPU works", 0.95),
    Target("awq-8b: decode 1 x 128, times bfloat16", "4-bit weights, context 128, batch 1: times bfloat16", 2.6),
    Target("awq-8b: decode 32 x 128, times bfloat16", "4-bit weights, context 128, batch 32: times bfloat16", 2.0),
    Target("awq-8b: decode 64 x 128, times bfloat16", "4-bit weights, context 128, batch 64: times bfloat16", 1.5),
    Target("attention 16 bits, bandwidth", f"attention decode alone, bfloat16 cache: {_SHARE_OF_BANDWIDTH}", 0.90),
    Target("attention 8 bits, bandwidth", f"attention decode alone, int8 cache: {_SHARE_OF_BANDWIDTH}", 0.85),
    Target("attention 4 bits, bandwidth", f"attention decode alone, int4 cache: {_SHARE_OF_BANDWIDTH}", 0.75),
    Target("llama-8b: prompt, peak", f"prompt of 8k, bfloat16: {_SHARE_OF_PEAK}", 0.65),
    Target("fp8-8b: prompt, peak", f"prompt of 8k, fp8: {_SHARE_OF_PEAK}", 0.55),
    Target("mixtral: prompt, peak", f"prompt of 8k, experts (Mixtral-like): {_SHARE_OF_PEAK}", 0.50),
    Target("qwen3-moe: prompt, peak", f"prompt of 8k, experts (Qwen3-MoE-like): {_SHARE_OF_PEAK}", 0.50),
    Target(
        "deepseek: decode 32 x 4096, bandwidth",
        f"latent attention (DeepSeek-like), batch 32, context 4k: {_SHARE_OF_BANDWIDTH}",
        0.60,
    ),
    Target("crowd: roofline", "1,000 requests of ShareGPT-like lengths, 8B: of the step roofline", 0.80),
    Target("crowd: output tokens/s", "the same: output tokens/s"),
    Target("full cache 8 bits, times 16", "full cache, int8: requests, times those of 16 bits", 1.27),
    Target("full cache 4 bits, times 16", "full cache, int4: requests, times those of 16 bits", 1.39),
)


def verdict(target: Target, value: float | None, *, is_dry_run: bool = False) -> list[str]:
    """Return a target's row; what was dry-run says nothing of a GPU."""
    least = "" if target.least is None else f">= {target.least:g}"
    if value is None:
        return [target.text, NOT_MEASURED, least, ""]
    if is_dry_run:
        return [target.text, f"({value:.3g})", least, "dry-run"]
    met = "" if target.least is None else "met" if value >= target.least else "missed"
    return [target.text, f"{value:.3g}", least, met]


def printed(machine: Mapping[str, Any], stages: Sequence[Mapping[str, Any]], findings: Mapping[str, Any]) -> str:
    """Return machine, stages, targets and all other findings as text."""
    parts = ["  ".join(f"{name}: {value}" for name, value in machine.items())]
    rows = [
        [
            str(stage["stage"]),
            f"{stage['seconds']:.0f}",
            str(stage["outcome"]) + ("" if stage["of_these_sources"] else " (of other sources)"),
        ]
        for stage in stages
    ]
    parts.append(table(["stage", "seconds", "outcome"], rows))
    is_dry_run = bool(machine.get("is_dry_run"))
    targets = [verdict(target, _number(findings, target.row), is_dry_run=is_dry_run) for target in TARGETS]
    parts.append(table(["target", "value", "promised", ""], targets))
    named = {target.row for target in TARGETS}
    others = [[row, f"{value:.4g}"] for row, value in findings.items() if row not in named and _is_number(value)]
    if others:
        parts.append(table(["also found", "value"], others))
    texts = {row: value for row, value in findings.items() if isinstance(value, str)}
    if tried := [[row.removeprefix(SELF_CHECK), value] for row, value in texts.items() if row.startswith(SELF_CHECK)]:
        parts.append(table(["kernel under self-check", "verdict"], tried))
    parts += [f"{row}\n{value}" for row, value in texts.items() if not row.startswith(SELF_CHECK)]
    return "\n\n".join(parts) + "\n"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _number(findings: Mapping[str, Any], row: str) -> float | None:
    value = findings.get(row)
    return float(value) if isinstance(value, (int, float)) else None
