"""Detection of other load on the machine.

A virtual machine's processors may share one core of the host for seconds at a time: each then looks busy and none looks
stolen from, but two do little more than one. Kernels that keep a core's arithmetic full lose a third, others less, so a
comparison made then says nothing.
"""

import threading
import time

import numpy as np

from lmdeploy._turbomind import available_cpu_count

_ELEMENTS = 1 << 17  # of float32: in a core's own cache, and long enough a call to forget the lock
_SECONDS = 0.15
ENOUGH = 0.85  # of what this many cores would do
TIMEOUT = 60.0  # seconds


def scaling(processors: int) -> float:
    """Return the throughput of this many threads over that of one: at best their number."""
    one = _rate(1)
    return _rate(processors) / one


def wait_until_quiet(timeout: float = TIMEOUT) -> None:
    """Wait until every processor has a core, and say so when that takes longer than ``timeout`` seconds."""
    if timeout == 0:
        return
    processors = available_cpu_count()
    end = time.monotonic() + timeout
    while processors > 1 and (found := scaling(processors)) < ENOUGH * processors:
        if time.monotonic() > end:
            print(f"   (measured although {processors} threads do only {found:.1f} times the work of one)", flush=True)
            return


def _rate(threads: int) -> float:
    """Return exponentials a second of this many threads."""
    counts = [0] * threads
    barrier = threading.Barrier(threads)

    def work(index: int) -> None:
        values = np.linspace(-1, 1, _ELEMENTS, dtype=np.float32)
        results = np.empty_like(values)
        barrier.wait()
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            for _ in range(4):
                np.exp(values, out=results)  # without the interpreter's lock
            counts[index] += 4

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / _SECONDS
