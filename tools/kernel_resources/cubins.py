"""Reads the machine code that the CUDA compiler left in objects, by NVIDIA's cuobjdump.

``cuobjdump`` comes with the toolkit, and with the wheel of Triton (the language), which torch brings along.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_ARCHITECTURE = re.compile(r"sm_\d+[af]?")
_HEADER = struct.Struct("<40xQ10xHHH")  # of an ELF file: where its section headers begin, their size, number, names
_SECTION = struct.Struct("<I20xQQ")  # name, offset, size


@dataclass(frozen=True)
class Kernel:
    """One kernel's machine code for one architecture.

    Attributes
    ----------
    source
        The object it is in, below the folder that was looked through.
    symbol, name
        As the compiler writes it, and as a reader does: without namespaces and parameters.
    architecture
        As ``sm_90a``.
    code
        Bytes of instructions.
    registers
        Of a thread.
    stack
        Bytes of a thread that are in memory: spilled registers, and arrays that are indexed at run time.
    shared
        Bytes of a block that are known when it is compiled; what a launch asks for comes on top, and from sm_90 on
        1 KB of the system's is in it.
    """

    source: str
    symbol: str
    name: str
    architecture: str
    code: int
    registers: int
    stack: int
    shared: int


def find_cuobjdump() -> Path:
    """Return the path of ``cuobjdump``: on PATH, of the toolkit, or of Triton's wheel.

    Raises
    ------
    FileNotFoundError
        None of them has it.
    """
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "cuobjdump")
    spec = importlib.util.find_spec("triton")
    places = (spec and spec.submodule_search_locations) or ()
    wheels = [Path(place, "backends/nvidia/bin/cuobjdump") for place in places]
    on_path = shutil.which("cuobjdump")
    for path in ([Path(on_path)] if on_path else []) + [toolkit, *wheels]:
        if path.exists():
            return path
    raise FileNotFoundError("there is no cuobjdump: install the CUDA toolkit, or the Python package triton")


def objects_below(path: Path) -> list[Path]:
    """Return the objects with kernels below a folder, or the file itself."""
    return [path] if path.is_file() else sorted([*path.rglob("*.cu.o"), *path.rglob("*.cubin")])


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


def architecture_of(cubin: Path) -> str:
    """Return the architecture that a file of machine code names."""
    found = _ARCHITECTURE.findall(cubin.name)
    return found[-1] if found else "unknown"


def code_sizes(cubin: Path) -> dict[str, int]:
    """Return the bytes of each function's instructions: the sections ``.text.SYMBOL`` of an ELF file."""
    data = cubin.read_bytes()
    first, size, count, names = _HEADER.unpack_from(data)
    sections = [_SECTION.unpack_from(data, first + i * size) for i in range(count)]
    strings = sections[names][1]
    sizes = {}
    for name, _, length in sections:
        text = data[strings + name : data.index(b"\0", strings + name)].decode()
        if text.startswith(".text."):
            sizes[text.removeprefix(".text.")] = length
    return sizes


def readable(symbols: list[str]) -> list[str]:
    """Return names for a reader, by ``c++filt`` where there is one."""
    if not symbols or shutil.which("c++filt") is None:
        return symbols
    done = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    return [_short(name) for name in done.stdout.splitlines()]


def _short(name: str) -> str:
    """Return a function's name without namespaces, type of result and parameters."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    name = re.sub(r"\(([\w:]+)\)(\d+)", r"\2", name)  # (turbomind::WeightFormat)3
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:i]
            break
    return re.sub(r"\b[a-z_]\w*::", "", name)


def kernels_in(cuobjdump: Path, file: Path, source: str) -> list[Kernel]:
    """Return the kernels of an object.

    Parameters
    ----------
    cuobjdump
        The program.
    file
        An object or a file of machine code.
    source
        What to name it.

    Raises
    ------
    RuntimeError
        ``cuobjdump`` failed.
    """
    found = []
    with cubins_of(cuobjdump, file) as cubins:
        for cubin in cubins:
            done = subprocess.run(
                [str(cuobjdump), "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"cuobjdump could not read {file}: {done.stderr.strip()}")
            usage = _USAGE.findall(done.stdout)
            sizes = code_sizes(cubin)
            names = readable([symbol for symbol, *_ in usage])
            found += [
                Kernel(source, symbol, name, architecture_of(cubin), sizes[symbol], *map(int, (reg, stack, shared)))
                for (symbol, reg, stack, shared, _), name in zip(usage, names, strict=True)
            ]
    return found
