"""What a serving process does with memory that it does not need any more."""

import subprocess
import sys

# Pieces of 300 KB, and between each two a small one that lives: those of a body's parsing, and what is kept of it.
_LIVED = """
import ctypes
from pathlib import Path
from lmdeploy.serve.heap import give_back_what_is_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

if {gives_back}:
    give_back_what_is_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(4 << 20))  # as after a large body
before = resident()
large, small = [], []
for _ in range(128):
    large.append(libc.malloc(300_000))
    ctypes.memset(large[-1], 1, 300_000)
    small.append(libc.malloc(1000))
for piece in large:
    libc.free(piece)
print(resident() - before)
"""


def _kept(gives_back: bool) -> float:
    """MiB that stay when 37 MiB were in use and were freed."""
    script = _LIVED.format(gives_back=gives_back)
    return float(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)


def test_memory_of_large_pieces_goes_back_though_small_ones_live_between_them() -> None:
    assert _kept(True) < 2
    # Some kernels take pages that nothing has read for a moment.
    assert max(_kept(False) for _ in range(3)) > 30
