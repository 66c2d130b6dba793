"""Metrics of HTTP requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class RequestMetrics:
    """Counts and times requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge(
            "lmdeploy_gateway_requests_open",
            "Requests being answered.",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._requests = Counter(
            "lmdeploy_gateway_requests",
            "Requests answered; status 499: left.",
            ["path", "method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "lmdeploy_gateway_request_seconds",
            "From a request's head to the end of its response.",
            ["path"],
            buckets=_BUCKETS,
            registry=registry,
        )

    def observe(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count one request that is over."""
        self._requests.labels(path, method, str(status)).inc()
        self._seconds.labels(path).observe(seconds)
