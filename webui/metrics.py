"""Metrics of a server at ``/metrics``, in Prometheus' text format."""

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
_TRITON_PORT = 8002  # of metrics, unless Triton was given another
SAMPLES = 120
# Names of each metric: by our engine, and by servers that follow vLLM.
NAMES = {
    "running": ("turbomind_requests_running", "vllm:num_requests_running"),
    "waiting": ("turbomind_requests_waiting", "vllm:num_requests_waiting"),
    "blocks_used": ("turbomind_cache_blocks_used",),
    "blocks": ("turbomind_cache_blocks_total",),
    "cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "generated": ("turbomind_tokens_out_total", "vllm:generation_tokens_total"),
    "prompt": ("turbomind_tokens_in_total", "vllm:prompt_tokens_total"),
    "queried": ("turbomind_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"),
    "hits": ("turbomind_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
}


@dataclass
class Sample:
    """The metrics of `NAMES` that a server reports, at a time of ``time.monotonic()``."""

    at: float
    metrics: dict[str, float]


def metrics_of(text: str) -> dict[str, float]:
    """Return the metrics of a page of metrics; those of several models are added up."""
    reported: dict[str, float] = {}
    for line in _LINE.finditer(text):
        try:
            reported[line["name"]] = reported.get(line["name"], 0.0) + float(line["value"])
        except ValueError:
            continue
    metrics = {
        metric: next(reported[name] for name in names if name in reported)
        for metric, names in NAMES.items()
        if any(name in reported for name in names)
    }
    if metrics.get("blocks"):
        metrics["cache"] = metrics.get("blocks_used", 0.0) / metrics["blocks"]
    return metrics


def default_metrics_url(server: str) -> str:
    """Return where a server reports its metrics: alongside its API, or on Triton's usual port."""
    if server.startswith(("http://", "https://")):
        return f"{server.rstrip('/').removesuffix('/v1')}/metrics"
    return f"http://{server.rpartition(':')[0]}:{_TRITON_PORT}/metrics"


@dataclass
class Watch:
    """Metrics of a server over time. It is asked when somebody looks, and then once for all who do.

    ``every``: seconds that a sample stands for.
    """

    url: str
    every: float = 1.0
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _client: httpx.AsyncClient | None = None
    _polled: float = float("-inf")

    async def look(self) -> bool:
        """Ask for the metrics, unless that was just done; return whether there are any."""
        now = time.monotonic()
        if now - self._polled >= self.every:
            self._polled = now
            if self._client is None:
                self._client = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False)
            try:
                response = await self._client.get(self.url)
                metrics = metrics_of(response.text) if response.status_code == httpx.codes.OK else {}
            except httpx.HTTPError:
                metrics = {}
            if not metrics:
                self.samples.clear()
            else:
                self.samples.append(Sample(now, metrics))
        return bool(self.samples)

    def values(self, metric: str) -> list[float | None]:
        """Return a metric over time; None where it was not given."""
        return [sample.metrics.get(metric) for sample in self.samples]

    def rates(self, metric: str) -> list[float | None]:
        """Return by how much a counter grew in a second, over time."""
        return [
            _growth(one, other, metric) if metric in one.metrics and metric in other.metrics else None
            for one, other in pairwise(self.samples)
        ]

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()


def _growth(one: Sample, other: Sample, metric: str) -> float:
    grown = other.metrics[metric] - one.metrics[metric]
    return max(grown, 0.0) / (other.at - one.at)  # a server that was started again counts from 0
