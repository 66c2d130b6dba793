"""Span exporters, OTLP and file. What cannot be sent is counted, and never waited for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult

from lmdeploy.version import __version__
from openai_gateway.tracing.endpoints import FILE

_SERVICE = "lmdeploy-gateway"  # OTEL_SERVICE_NAME goes before it
_TIMEOUT = 5.0  # seconds for a collector to take a batch, in its own thread


def provider_for(endpoint: str, on_lost: Callable[[int], object]) -> TracerProvider:
    """Return the tracer provider. The usual variables OTEL_... set sampling and the resource.

    ``endpoint``: as ``checked_endpoint`` returns it. ``on_lost``: called with the number of spans that could not be
    sent.
    """
    attributes = {SERVICE_NAME: _SERVICE, "service.version": __version__}
    environment = Resource.create({})  # with the SDK's own word for what nobody has named
    if not str(environment.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        attributes.pop(SERVICE_NAME)
    provider = TracerProvider(resource=Resource.create(attributes))
    # The exporter warns for each batch, and what it warns of is counted.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
    provider.add_span_processor(BatchSpanProcessor(_Counting(_exporter(endpoint), on_lost)))
    return provider


def _exporter(endpoint: str) -> SpanExporter:
    if endpoint.startswith(FILE):
        # A line a span, whole lines of several workers after each other.
        lines = Path(endpoint.removeprefix(FILE)).open("a", encoding="utf-8")  # noqa: SIM115 (the exporter's for good)
        return ConsoleSpanExporter(out=lines, formatter=lambda span: span.to_json(indent=None) + "\n")
    return OTLPSpanExporter(endpoint=endpoint, timeout=_TIMEOUT)


class _Counting(SpanExporter):
    def __init__(self, inner: SpanExporter, on_lost: Callable[[int], object]) -> None:
        self._inner = inner
        self._on_lost = on_lost

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        with contextlib.suppress(Exception):  # whatever a collector answers: serving continues
            result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._on_lost(len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
