"""Lists what kernels of a CUDA build read before they wait for the launch before them; fails where one never waits.

``python -m tools.kernel_resources [BUILD or OBJECT ...]`` reads the machine code for Hopper and later
(``backend_cpp/kernels/cuda/device.h`` has the rules) by NVIDIA's ``cuobjdump``, which comes with the toolkit and with
the wheel of Triton (the language). The exit status is 1 where a kernel never waits, or writes before, and 2 where there
is nothing to look at. Registers and spills: ``cuobjdump --dump-resource-usage OBJECT | c++filt``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ARCHITECTURE = re.compile(r"sm_(\d+)[af]?")
_HOPPER = 90
_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)[^;]*;")
WAIT = "ACQBULK"  # griddepcontrol.wait; launch_dependents is PREEXIT
_READS = ("LDG", "LD", "LDGSTS", "UBLKCP", "UTMALDG")
_WRITES = ("STG", "ST", "ATOMG", "ATOM", "RED", "REDG", "UTMASTG", "UTMAREDG")


@dataclass(frozen=True)
class Start:
    """The beginning of a kernel."""

    waits: int  # how often the kernel waits: more than once where ways through it differ
    # Instructions that touch the device's memory and are before the first wait
    reads: Counter[str]
    writes: Counter[str]


def listing_of(cuobjdump: Path, cubin: Path) -> str:
    """Return the machine code of a file as text."""
    return subprocess.run([str(cuobjdump), "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout


def instructions_of(listing: str) -> dict[str, list[str]]:
    """Return the instructions of each function of a listing, without modifiers and operands."""
    functions: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in listing.splitlines():
        if match := _FUNCTION.search(line):
            lines = functions.setdefault(match[1], [])
        elif match := _INSTRUCTION.search(line):
            lines.append(match[1].split(".")[0])
    return functions


def start_of(names: list[str]) -> Start:
    """Return how a kernel begins, from its instructions in the order of addresses."""
    before = names[: names.index(WAIT)] if WAIT in names else names
    return Start(
        names.count(WAIT),
        Counter(name for name in before if name in _READS),
        Counter(name for name in before if name in _WRITES),
    )


def find_cuobjdump() -> Path:
    """Return the path of ``cuobjdump``: on PATH, of the toolkit, or of Triton's wheel.

    Raises `FileNotFoundError` if none of them has it.
    """
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "cuobjdump")
    spec = importlib.util.find_spec("triton")
    folders = (spec and spec.submodule_search_locations) or ()
    wheels = [Path(folder, "backends/nvidia/bin/cuobjdump") for folder in folders]
    on_path = shutil.which("cuobjdump")
    for path in ([Path(on_path)] if on_path else []) + [toolkit, *wheels]:
        if path.exists():
            return path
    raise FileNotFoundError("there is no cuobjdump: install the CUDA toolkit, or the Python package triton")


@contextmanager
def cubins_of(cuobjdump: Path, file: Path) -> Iterator[list[Path]]:
    """Lend the machine code of an object, a file for each architecture, whose name ends in it."""
    if file.suffix == ".cubin":
        yield [file]
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [str(cuobjdump), "--extract-elf", "all", str(file.resolve())]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0 and "does not contain device code" not in done.stdout + done.stderr:
            raise RuntimeError(f"cuobjdump could not read {file}: {(done.stderr or done.stdout).strip()}")
        yield sorted(Path(folder).iterdir())


def print_waits(cuobjdump: Path, files: list[Path]) -> int:
    """Print how our kernels begin that can overlap with the launch before; return how many are wrong."""
    wrong = 0
    for file in files:
        with cubins_of(cuobjdump, file) as cubins:
            for cubin in cubins:
                architecture = _ARCHITECTURE.search(cubin.name)
                if architecture is None or int(architecture[1]) < _HOPPER:
                    continue
                functions = instructions_of(listing_of(cuobjdump, cubin))
                for symbol, names in functions.items():
                    if not symbol.startswith("_ZN9turbomind"):  # a library's, of our types maybe
                        continue
                    start = start_of(names)
                    is_wrong = start.waits == 0 or bool(start.writes)
                    wrong += is_wrong
                    if start.waits != 1 or start.reads or is_wrong:
                        found = [f"{count} {what}" for what, count in (start.reads + start.writes).items()]
                        line = f"{symbol}: waits {start.waits} times, before: {', '.join(found) or 'nothing'}"
                        print(line + (" WRONG" if is_wrong else ""))
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.kernel_resources", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("build-cuda")], help="build folders or objects")
    paths = parser.parse_args(arguments).paths
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.cu.o")))]
    if not files:
        print(f"no kernels below {', '.join(map(str, paths))}: build with CUDA=1 first", file=sys.stderr)
        return 2
    try:
        cuobjdump = find_cuobjdump()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if print_waits(cuobjdump, files) else 0


if __name__ == "__main__":
    sys.exit(main())
