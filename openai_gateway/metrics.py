"""The gateway's own figures, for Prometheus. Those of several worker processes are added up."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class GatewayMetrics:
    """Counts and times requests."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.open = Gauge(
            "lmdeploy_gateway_requests_open",
            "Requests being answered.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self._requests = Counter(
            "lmdeploy_gateway_requests",
            "Requests answered; status 499: left.",
            ["path", "method", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "lmdeploy_gateway_request_seconds",
            "From a request's head to the end of its answer.",
            ["path"],
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def observe(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count one request that is over."""
        self._requests.labels(path, method, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        everyone = CollectorRegistry()
        multiprocess.MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)
