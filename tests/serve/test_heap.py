"""A serving process returns memory that it does not need any more."""

import os
import subprocess
import sys

# Pieces of 300 KB, and between each two a small one that lives: those of a body's parsing, and what is kept of it.
# malloc itself counts what it holds: how much of it is resident depends on the kernel, which may take pages back.
_LIVED = """
import ctypes
from lmdeploy.serve.heap import trim_heap

class Mallinfo2(ctypes.Structure):  # mallinfo(3), glibc's
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo2.restype = Mallinfo2

def held():
    info = libc.mallinfo2()
    return (info.arena + info.hblkhd) / 2**20

trim_heap()
libc.free(libc.malloc(4 << 20))  # as after a large body
before = held()
large, small = [], []
for _ in range(128):
    large.append(libc.malloc(300_000))
    small.append(libc.malloc(1000))
used = held()
for piece in large:
    libc.free(piece)
print(used - before, held() - before)  # MiB
"""


def test_memory_of_large_pieces_goes_back_though_small_ones_live_between_them() -> None:
    settings = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")  # of the caller's C library
    environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    output = subprocess.run(
        [sys.executable, "-c", _LIVED], check=True, capture_output=True, text=True, env=environment
    ).stdout
    used, kept = map(float, output.split())
    assert used > 30
    assert kept < 2
