"""Tables and progress bars for people, JSON for programs."""

import importlib
import importlib.util
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.bench.roofline import Limits
from tools.bench.stats import Summary


def ignore() -> None:
    """Show no progress."""


@contextmanager
def progress_bar(
    total: int, unit: str, *, is_shown: bool | None = True, title: str | None = None
) -> Iterator[Callable[[], None]]:
    """Show a bar for as long as the block lasts; the value moves it on by one.

    ``total``, ``unit``: how many steps of what, such as ``request``. ``is_shown``: whether there is a bar; None: in a
    terminal only. ``title``: before the bar; None: nothing.
    """
    from tqdm import tqdm  # tables are printed where no package is installed

    with tqdm(
        total=total,
        unit=unit,
        desc=title,
        disable=None if is_shown is None else not is_shown,
        leave=False,
        dynamic_ncols=True,
    ) as bar:

        def advance() -> None:
            bar.update()

        yield advance


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text table; the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def milliseconds(seconds: float) -> str:
    """Return a time as milliseconds."""
    return f"{seconds * 1000:.1f}"


# In milliseconds: TTFT is the time to the first token, ITL the time between tokens.
SUMMARY_HEADER = (
    *("run", "requests", "tokens in", "out", "seconds", "tokens/s", "RPM"),
    *("TTFT avg", "p50", "p95", "p99", "ITL avg", "p50", "p75", "p95", "p99"),
)


def summary_row(name: str, run: Summary) -> list[str]:
    """Return a run's row under ``SUMMARY_HEADER``; the times are milliseconds."""
    first, token = run.first_token_latency, run.token_latency
    return [
        name,
        str(run.requests),
        str(run.input_tokens),
        str(run.output_tokens),
        f"{run.seconds:.1f}",
        f"{run.token_throughput:.1f}",
        f"{run.requests_per_minute:.1f}",
        *(milliseconds(first[key]) for key in ("mean", "p50", "p95", "p99")),
        *(milliseconds(token[key]) for key in ("mean", "p50", "p75", "p95", "p99")),
    ]


def print_summaries(runs: dict[str, Summary]) -> None:
    """Print runs as one table."""
    print(table(SUMMARY_HEADER, [summary_row(name, run) for name, run in runs.items()]), flush=True)


def machine(limits: Limits | None = None) -> dict[str, Any]:
    """Return the machine of the measurement, with its limits where they were measured."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    found: dict[str, Any] = {"cpu": cpu, "cpus": len(os.sched_getaffinity(0)), "load_1min": os.getloadavg()[0]}
    if importlib.util.find_spec("lmdeploy._turbomind"):
        found["cpu_isa"] = importlib.import_module("lmdeploy._turbomind").cpu_isa()
    # Settings of OpenMP reach torch and llama.cpp through the environment.
    found["openmp"] = {name: value for name, value in os.environ.items() if name.startswith(("OMP_", "GOMP_"))}
    return found if limits is None else found | {"limits": asdict(limits)}


def write_json(
    path: Path | None, name: str, runs: dict[str, Summary], limits: Limits | None = None, **more: Any
) -> None:
    """Write a report; a path of None writes nothing.

    ``limits``: of the machine, where they were measured. ``more``: whatever else belongs to the report: settings,
    ratios.
    """
    write_report(path, name, limits, runs={key: asdict(run) for key, run in runs.items()}, **more)


def write_report(path: Path | None, name: str, limits: Limits | None = None, **content: Any) -> None:
    """Write a report of any content, with what it was measured on; a path of None writes nothing."""
    if path is None:
        return
    report = {"tool": name, "machine": machine(limits), **content}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
