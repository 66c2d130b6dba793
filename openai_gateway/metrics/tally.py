"""Buffered histogram observations, because they run once a token."""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client import Histogram


class Tally:
    """Counts for one series of a histogram until they are handed over."""

    __slots__ = ("_bounds", "_counts", "_histogram", "_sum")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram  # with its labels, if it has any. Only this tally may observe it
        self._bounds = histogram._upper_bounds  # ascending; the last one is infinite
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count an observation, or several of the same value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def hand_over(self) -> None:
        """Move everything into the histogram.

        `Histogram.observe` takes one observation and goes through all bounds for it, so this adds to what is beneath.
        """
        if not any(self._counts):
            return
        for index, count in enumerate(self._counts):
            if count:
                self._histogram._buckets[index].inc(count)
                self._counts[index] = 0
        self._histogram._sum.inc(self._sum)
        self._sum = 0.0
