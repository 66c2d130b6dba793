"""Lists size, registers, shared memory and spills of every kernel of a CUDA build, and checks the spills.

::

    python -m tools.kernel_resources build-cuda
    python -m tools.kernel_resources build-cuda --limit 0 --limit attention/attend_tile=64
    python -m tools.kernel_resources build-cuda --waits

``--limit [PART=]BYTES`` is the most that a thread may keep in memory for want of registers; the last limit holds whose
PART is in the path of the object or in the kernel's name. A kernel beyond its limit is named, and the exit status
is 1; it is 2 where there is nothing to look at. ``--waits`` lists what our kernels for Hopper and later read before
they wait for the launch before them; the status is 1 where one never waits, or writes before.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tools.kernel_resources.cubins import (
    Kernel,
    architecture_of,
    cubins_of,
    find_cuobjdump,
    kernels_in,
    objects_below,
    readable,
)
from tools.kernel_resources.waits import instructions_of, listing_of, start_of


def _limit(text: str) -> tuple[str, int]:
    """Return the part of names that a limit is for, and its bytes."""
    part, _, number = text.rpartition("=")
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"a limit is BYTES or PART=BYTES, got {text}")
    return part, int(number)


def beyond(kernels: list[Kernel], limits: list[tuple[str, int]]) -> list[str]:
    """Return a line for each kernel that keeps more in memory than the last limit that is for it."""
    lines = []
    for kernel in kernels:
        own = [most for part, most in limits if part in kernel.source or part in kernel.name]
        if own and kernel.stack > own[-1]:
            lines.append(f"{kernel.name} for {kernel.architecture} spills {kernel.stack} bytes, beyond {own[-1]}")
    return lines


def table(kernels: list[Kernel]) -> str:
    """Return the kernels as lines of a table."""
    rows = [("arch", "code", "registers", "shared", "spills", "kernel")]
    rows += [
        (k.architecture, str(k.code), str(k.registers), str(k.shared), str(k.stack), f"{k.source}: {k.name}")
        for k in sorted(kernels, key=lambda k: (k.source, k.name, k.architecture))
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, 5)), row[5]]) for row in rows
    )


def print_waits(cuobjdump: Path, files: list[Path]) -> int:
    """Print how our kernels begin that can overlap with the launch before; return how many are wrong."""
    wrong = 0
    for file in files:
        with cubins_of(cuobjdump, file) as cubins:
            for cubin in (each for each in cubins if int(architecture_of(each)[3:].rstrip("af")) >= 90):
                functions = instructions_of(listing_of(cuobjdump, cubin))
                for symbol, name in zip(functions, readable(list(functions)), strict=True):
                    if not symbol.startswith("_ZN9turbomind"):  # a library's, of our types maybe
                        continue
                    start = start_of(functions[symbol])
                    is_wrong = start.waits == 0 or bool(start.writes)
                    wrong += is_wrong
                    if start.waits != 1 or start.reads or is_wrong:
                        found = [f"{count} {what}" for what, count in (start.reads + start.writes).items()]
                        between = [f"{count} {what}" for what, count in start.between.items()]
                        line = f"{name}: waits {start.waits} times, before: {', '.join(found) or 'nothing'}"
                        line += f"; up to the last: {', '.join(between)}" if between else ""
                        print(line + (" WRONG" if is_wrong else ""))
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_resources", description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("build-cuda")], help="build folders or objects")
    parser.add_argument("--limit", type=_limit, action="append", default=[], metavar="[PART=]BYTES")
    parser.add_argument("--json", type=Path, help="also write the list there")
    parser.add_argument("--waits", action="store_true", help="instead: what kernels read before they wait")
    options = parser.parse_args(arguments)
    try:
        cuobjdump = find_cuobjdump()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    files = [(path, file) for path in options.paths for file in objects_below(path)]
    if options.waits:
        return 1 if print_waits(cuobjdump, [file for _, file in files]) else 0
    kernels: list[Kernel] = []
    for path, file in files:
        source = file.name if file == path else file.relative_to(path).as_posix()
        kernels += kernels_in(cuobjdump, file, source)
    if not kernels:
        print(f"no kernels below {', '.join(map(str, options.paths))}: build with CUDA=1 first", file=sys.stderr)
        return 2
    print(table(kernels))
    if options.json:
        options.json.write_text(json.dumps([asdict(kernel) for kernel in kernels], indent=1) + "\n")
    problems = beyond(kernels, options.limit)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
