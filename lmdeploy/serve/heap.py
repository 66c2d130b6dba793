"""How the C library keeps memory for a process that serves for a long time."""

from __future__ import annotations

import ctypes

# mallopt(3), glibc's.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE = 128 << 10  # bytes; glibc's own value before it has seen anything large
_ARENAS = 2


def give_back_what_is_freed() -> None:
    """Have large pieces mapped for themselves and unmapped when they are freed, and threads share few heaps.

    By itself glibc takes pieces of up to 32 MiB out of its heaps once one of their size was freed, and makes up to
    eight heaps a core. A heap shrinks at its end alone, so a small piece that lives keeps all that lay before it: after
    large bodies a gateway held what its requests had needed at most. To be called before threads are started. With
    another C library it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_ARENA_MAX, _ARENAS)
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, _LARGE)
