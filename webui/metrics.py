"""What a server tells of itself at ``/metrics``, in Prometheus' text format."""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import httpx

# A line of the format: name, labels, value.
_LINE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{.*\})? (?P<value>\S+)", re.MULTILINE)
_TIMEOUT = 2.0  # seconds
_TRITON_PORT = 8002  # of metrics, unless Triton was told another
SAMPLES = 120
# What each figure is called: by our engine, and by servers that speak as vLLM does.
NAMES = {
    "running": ("turbomind_requests_running", "vllm:num_requests_running"),
    "waiting": ("turbomind_requests_waiting", "vllm:num_requests_waiting"),
    "blocks_used": ("turbomind_cache_blocks_used",),
    "blocks": ("turbomind_cache_blocks_total",),
    "cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "generated": ("turbomind_tokens_out_total", "vllm:generation_tokens_total"),
    "prompt": ("turbomind_tokens_in_total", "vllm:prompt_tokens_total"),
    "sought": ("turbomind_tokens_sought_total", "vllm:prefix_cache_queries_total"),
    "matched": ("turbomind_tokens_matched_total", "vllm:prefix_cache_hits_total"),
}


@dataclass
class Sample:
    """The figures of `NAMES` that a server tells, at a time of ``time.monotonic()``."""

    at: float
    figures: dict[str, float]


def figures_of(text: str) -> dict[str, float]:
    """Return the figures of a page of metrics; those of several models are added up."""
    told: dict[str, float] = {}
    for line in _LINE.finditer(text):
        try:
            told[line["name"]] = told.get(line["name"], 0.0) + float(line["value"])
        except ValueError:
            continue
    figures = {
        figure: next(told[name] for name in names if name in told)
        for figure, names in NAMES.items()
        if any(name in told for name in names)
    }
    if figures.get("blocks"):
        figures["cache"] = figures.get("blocks_used", 0.0) / figures["blocks"]
    return figures


def metrics_url(server: str) -> str:
    """Return where a server tells its figures: beside its API, or on Triton's usual port."""
    if server.startswith(("http://", "https://")):
        return f"{server.rstrip('/').removesuffix('/v1')}/metrics"
    return f"http://{server.rpartition(':')[0]}:{_TRITON_PORT}/metrics"


@dataclass
class Watch:
    """Figures of a server over time. It is asked when somebody looks, and then once for all who do.

    Parameters
    ----------
    url
        Of its page of metrics.
    every
        Seconds that a sample stands for.
    """

    url: str
    every: float = 1.0
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _client: httpx.AsyncClient | None = None
    _asked: float = float("-inf")

    async def look(self) -> bool:
        """Ask for the figures, unless that was just done; return whether there are any."""
        now = time.monotonic()
        if now - self._asked >= self.every:
            self._asked = now
            if self._client is None:
                self._client = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False)
            try:
                answer = await self._client.get(self.url)
                figures = figures_of(answer.text) if answer.status_code == httpx.codes.OK else {}
            except httpx.HTTPError:
                figures = {}
            if not figures:
                self.samples.clear()
            else:
                self.samples.append(Sample(now, figures))
        return bool(self.samples)

    def values(self, figure: str) -> list[float | None]:
        """Return a figure over time; None where it was not told."""
        return [sample.figures.get(figure) for sample in self.samples]

    def rates(self, figure: str) -> list[float | None]:
        """Return by how much a counter grew in a second, over time."""
        return [
            _growth(one, other, figure) if figure in one.figures and figure in other.figures else None
            for one, other in pairwise(self.samples)
        ]

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()


def _growth(one: Sample, other: Sample, figure: str) -> float:
    grown = other.figures[figure] - one.figures[figure]
    return max(grown, 0.0) / (other.at - one.at)  # a server that was started anew counts from 0
