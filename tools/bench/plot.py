"""Images of results, drawn with matplotlib (a requirement of development only)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Bar:
    """One bar: what it is, how long, and where its target is, if it has one."""

    label: str
    value: float
    target: float | None = None


def subplots(columns: int, width: float, height: float) -> tuple[Any, Any]:
    """Return a measurement of this many inches and its axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height))


def save(measurement: Any, path: Path) -> None:
    """Write a measurement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    measurement.tight_layout()
    measurement.savefig(path)
    print(f"written: {path}")


def draw_bars(path: Path | None, bars: Sequence[Bar], title: str) -> None:
    """Draw horizontal bars from the top down, each with its value; a path of None draws nothing."""
    if path is None:
        return
    measurement, axes = subplots(1, 10, 1.2 + 0.32 * len(bars))
    rows = list(range(len(bars)))
    missed = [bar.target is not None and bar.value < bar.target for bar in bars]
    colours = ["tab:orange" if miss else "tab:blue" for miss in missed]
    drawn = axes.barh(rows, [bar.value for bar in bars], color=colours)
    axes.bar_label(drawn, fmt="%.3g", padding=3)
    for row, bar in zip(rows, bars, strict=True):
        if bar.target is not None:
            axes.plot([bar.target, bar.target], [row - 0.45, row + 0.45], color="black")
    axes.set_yticks(rows, [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(title)
    axes.grid(axis="x", alpha=0.3)
    save(measurement, path)
