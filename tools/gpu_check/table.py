"""Targets, and the report with a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.bench.report import table
from tools.bench.stats import median

COPY, BFLOAT16, FLOAT8 = "copy bytes/s", "bfloat16 operations/s", "fp8 operations/s"
NOT_MEASURED = "not measured"
SELF_CHECK = "self-check of "  # how rows of kernels under self-check begin


@dataclass(frozen=True)
class Target:
    """A row of the table."""

    # The finding it shows, and the one that this is divided by; empty: by nothing
    row: str
    text: str
    per: str = ""
    floor: float | None = None  # what is promised, if anything is


TARGETS = (
    Target("llama-8b: decode 1 x 128, bytes/s", "decode, batch 1, bfloat16, 8B: of the copy bandwidth", COPY, 0.85),
    Target("llama-8b: decode 64 x 2048, bytes/s", "decode, batch 64, context 2k: of the copy bandwidth", COPY, 0.80),
    Target("llama-8b: decode 64 x 2048, busy", "the same: time in which the GPU works", floor=0.95),
    *[
        Target(
            f"awq-8b: decode {batch} x 128, tokens/s",
            f"4-bit weights, context 128, batch {batch}: times bfloat16",
            f"llama-8b: decode {batch} x 128, tokens/s",
            floor,
        )
        for batch, floor in ((1, 2.6), (32, 2.0), (64, 1.5))
    ],
    *[
        Target(f"attention {bits} bits, bytes/s", f"decode attention, {bits}-bit cache: of the bandwidth", COPY, floor)
        for bits, floor in ((16, 0.90), (8, 0.85), (4, 0.75))
    ],
    Target("llama-8b: prompt, operations/s", "prompt of 8k, bfloat16: of the peak, without attention", BFLOAT16, 0.65),
    Target("fp8-8b: prompt, operations/s", "prompt of 8k, fp8: of the peak, without attention", FLOAT8, 0.55),
    *[
        Target(f"{shape}: prompt, operations/s with attention", f"prompt of 8k, {shape}: of the peak", BFLOAT16, 0.5)
        for shape in ("mixtral", "qwen3-moe")
    ],
    Target(
        "deepseek: decode 32 x 4096, bytes/s", "latent attention, batch 32, context 4k: of the bandwidth", COPY, 0.60
    ),
    Target("crowd: least seconds", "1,000 requests, until all have begun: of the roofline", "crowd: seconds", 0.80),
    Target("crowd: output tokens/s", "the same, to the end: output tokens/s"),
)


def verdict(target: Target, findings: Mapping[str, Any], *, is_dry_run: bool = False) -> list[str]:
    """Return a target's row; what was dry-run says nothing of a GPU."""
    floor = "" if target.floor is None else f">= {target.floor:g}"
    if target.row not in findings or (target.per and target.per not in findings):
        return [target.text, NOT_MEASURED, floor, ""]
    value = findings[target.row] / (findings[target.per] if target.per else 1.0)
    if is_dry_run:
        return [target.text, f"({value:.3g})", floor, "dry-run"]
    met = "" if target.floor is None else "met" if value >= target.floor else "missed"
    return [target.text, f"{value:.3g}", floor, met]


def printed(machine: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Return machine, steps, targets and all findings as text; of two builds, their ratios."""
    parts = ["  ".join(f"{name}: {value}" for name, value in machine.items())]
    ended = [[line["step"], f"{line['seconds']:.0f}", line["outcome"]] for line in results if "outcome" in line]
    parts.append(table(["step", "seconds", "outcome"], ended))
    found = [line for line in results if "row" in line]
    if compared := _compared(found):
        parts.append(table(["compared", "old", "new", "new / old"], compared))
        return "\n\n".join(parts) + "\n"
    findings = {line["row"]: line["value"] for line in found}
    targets = [verdict(target, findings, is_dry_run=bool(machine.get("is_dry_run"))) for target in TARGETS]
    parts.append(table(["target", "value", "promised", ""], targets))
    if others := [[row, f"{value:.4g}"] for row, value in findings.items() if not isinstance(value, str)]:
        parts.append(table(["found", "value"], others))
    texts = {row: value for row, value in findings.items() if isinstance(value, str)}
    if tried := [[row.removeprefix(SELF_CHECK), value] for row, value in texts.items() if row.startswith(SELF_CHECK)]:
        parts.append(table(["kernel under self-check", "verdict"], tried))
    parts += [f"{row}\n{value}" for row, value in texts.items() if not row.startswith(SELF_CHECK)]
    return "\n\n".join(parts) + "\n"


def _compared(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return medians of each row by the side that it was measured on, and their ratio."""
    sides: dict[str, dict[str, list[float]]] = {}
    for line in found:
        if line.get("side"):
            sides.setdefault(line["row"], {}).setdefault(line["side"], []).append(line["value"])
    rows = []
    for row, values in sides.items():
        if len(values) == 2:
            old, new = median(values["old"]), median(values["new"])
            rows.append([row, f"{old:.4g}", f"{new:.4g}", f"{new / old:.3f}"])
    return rows
