"""Latency statistics from arrival times of tokens."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PERCENTILES = (50, 75, 95, 99)


@dataclass
class Record:
    """When the tokens of one request arrived."""

    started: float  # when it was sent; seconds of ``time.perf_counter()``, like all times here
    # For each response that brought tokens: its time and how many
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    input_len: int = 0
    tokens: list[int] = field(default_factory=list)  # those that came, where a peer says which

    def arrive(self, tokens: Sequence[int]) -> None:
        """Note tokens that have come now, if any."""
        if tokens:
            self.arrivals.append((time.perf_counter(), len(tokens)))
            self.tokens += tokens

    @property
    def output_len(self) -> int:
        """Tokens generated."""
        return sum(count for _, count in self.arrivals)

    @property
    def first_token_latency(self) -> float:
        """Seconds from sending to the first token."""
        return self.arrivals[0][0] - self.started

    @property
    def seconds_a_token(self) -> float:
        """From the first token to the last, a token."""
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / max(1, self.output_len - 1)

    def token_latencies(self) -> list[float]:
        """Return the seconds between tokens, one number for each token after the first response."""
        gaps = []
        for (before, _), (now, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [(now - before) / count] * count
        return gaps


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of values by linear interpolation; NaN if there are none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN if there are no values."""
    return math.fsum(values) / len(values) if values else math.nan


def median(values: Sequence[float]) -> float:
    """Return the median; NaN if there are no values."""
    return percentile(values, 50)


def steady_rate(records: Sequence[Record]) -> float:
    """Return tokens/s while all requests generate: from when the last one has its first token, prefill excluded.

    It is the sum of the requests' own rates over their responses in that time, so that it does not matter in which
    order the responses of one step arrive. Raises `RuntimeError` if a request brought fewer than two responses in that
    time.
    """
    begin = max(record.arrivals[0][0] for record in records)
    total = 0.0
    for record in records:
        # The response before `begin` may be of the same step as the last request's first one.
        steady = [(time, count) for time, count in record.arrivals if time >= begin]
        if len(steady) < 2:
            raise RuntimeError("the responses are too short to measure a rate: one ended before the last one began")
        total += sum(count for _, count in steady[1:]) / (steady[-1][0] - steady[0][0])
    return total


@dataclass(frozen=True)
class Summary:
    """A run in numbers: lengths in tokens, times in seconds, rates a second."""

    requests: int
    seconds: float
    input_tokens: int
    output_tokens: int
    token_throughput: float  # generated tokens over total time, prefill included
    requests_per_minute: float
    # Mean, and percentiles by name (``p50``, ...)
    first_token_latency: dict[str, float]
    token_latency: dict[str, float]


def duration(records: Sequence[Record]) -> float:
    """Return the seconds from the first request to the last token."""
    return max(record.arrivals[-1][0] for record in records) - min(record.started for record in records)


def summarize(records: Iterable[Record], seconds: float) -> Summary:
    """Return the summary of a run that took this many seconds."""
    finished = [record for record in records if record.arrivals]
    output_tokens = sum(record.output_len for record in finished)
    return Summary(
        requests=len(finished),
        seconds=seconds,
        input_tokens=sum(record.input_len for record in finished),
        output_tokens=output_tokens,
        token_throughput=output_tokens / seconds,
        requests_per_minute=60 * len(finished) / seconds,
        first_token_latency=_spread([record.first_token_latency for record in finished]),
        token_latency=_spread([gap for record in finished for gap in record.token_latencies()]),
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": mean(values), **{f"p{percent}": percentile(values, percent) for percent in PERCENTILES}}
