"""Prometheus page: all metrics of the gateway, in Prometheus' text format."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Metric, generate_latest, multiprocess
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from openai_gateway.metrics.requests import RequestMetrics
from openai_gateway.metrics.responses import ResponseMetrics

OTHER_NAMES = {
    "lmdeploy_gateway_time_to_first_token_seconds": (
        "vllm:time_to_first_token_seconds",
        "lmdeploy:time_to_first_token_seconds",
    ),
    "lmdeploy_gateway_inter_token_seconds": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",  # older; autoscalers still read it
        "lmdeploy:time_per_output_token_seconds",
    ),
    "lmdeploy_gateway_time_per_output_token_seconds": ("vllm:request_time_per_output_token_seconds",),
    "lmdeploy_gateway_request_latency_seconds": (
        "vllm:e2e_request_latency_seconds",
        "lmdeploy:e2e_request_latency_seconds",
    ),
    "lmdeploy_gateway_prompt_tokens": ("vllm:request_prompt_tokens", "lmdeploy:request_prompt_tokens"),
    "lmdeploy_gateway_generation_tokens": ("vllm:request_generation_tokens", "lmdeploy:request_generation_tokens"),
    "lmdeploy_gateway_responses": ("vllm:request_success", "lmdeploy:request_success"),
}
"""Metrics that are reported again under the names that vLLM and LMDeploy give them, as routers and dashboards read."""

_SHARE = 0.05  # of the gateway's time
_ENGINE = {"engine": "0"}  # the label that theirs have


class GatewayMetrics:
    """All that a gateway counts. Metrics of several worker processes are added up."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = RequestMetrics(self._registry)
        self.responses = ResponseMetrics(self._registry)
        self.spans_lost = Counter(
            "lmdeploy_gateway_spans_lost",
            "Spans of requests that no collector took.",
            registry=self._registry,
        )
        self._page, self._expires = b"", -math.inf

    def text(self) -> bytes:
        """Return the page.

        Routers ask for it many times a second. So that writing it takes at most a small share of the gateway's time,
        however many series there are, one that took longer to write is shown for longer.
        """
        begin = time.perf_counter()
        if begin >= self._expires:
            self._page = self._written()
            end = time.perf_counter()
            self._expires = end + (end - begin) / _SHARE
        return self._page

    def _written(self) -> bytes:
        self.responses.hand_over()
        metrics = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            metrics = CollectorRegistry()
            multiprocess.MultiProcessCollector(metrics)  # type: ignore[no-untyped-call]
        return generate_latest(_WithOtherNames(metrics))


class _WithOtherNames(Collector):
    def __init__(self, metrics: CollectorRegistry) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for family in self._metrics.collect():
            yield family
            for name in OTHER_NAMES.get(family.name, ()):
                yield _renamed(family, name, family.documentation, _ENGINE)


def _renamed(family: Metric, name: str, documentation: str, labels: dict[str, str]) -> Metric:
    renamed = Metric(name, documentation, family.type)
    renamed.samples = [
        Sample(name + sample.name.removeprefix(family.name), {**sample.labels, **labels}, sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return renamed
