"""Settings of memory allocation and garbage collection for long-running processes."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable

# mallopt(3), glibc's.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE = 128 << 10  # bytes; glibc's own value before it has seen anything large
_ARENAS = 2
TRIM_SECONDS = 30.0


def trim_heap() -> None:
    """Have large pieces mapped for themselves and unmapped when they are freed, and threads share few heaps.

    By itself glibc takes pieces of up to 32 MiB out of its heaps once one of their size was freed, and makes up to
    eight heaps a core. A heap shrinks at its end alone, so a small piece that lives keeps all that lay before it: after
    large bodies a gateway held what its requests had needed at most. Free pages in the middle of a heap go back to the
    system every `TRIM_SECONDS`. To be called before threads are started. With another C library it does nothing.
    """
    library = ctypes.CDLL(None)
    mallopt = getattr(library, "mallopt", None)
    if mallopt is None:
        return
    mallopt(_ARENA_MAX, _ARENAS)
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _LARGE)
    threading.Thread(target=_trim, args=(library.malloc_trim,), name="malloc_trim", daemon=True).start()


def pause_collection() -> None:
    """Collect no garbage while a server imports its modules: a sixth of that time would go to it, and there is none."""
    gc.disable()


def resume_collection() -> None:
    """End `pause_collection`: collect garbage, but not among what was loaded, which takes 70 ms of a gateway."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _trim(malloc_trim: Callable[[int], int]) -> None:
    while True:
        time.sleep(TRIM_SECONDS)
        malloc_trim(0)  # without the interpreter's lock
