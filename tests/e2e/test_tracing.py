"""A request's trace through the processes: gateway, tritonserver, its models, and the engine's own times."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.commands import api_server
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass(frozen=True)
class Reported:
    """A span as it came: its process's name, its own, and whose child it is."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int


@contextmanager
def collector() -> Iterator[tuple[str, list[Reported]]]:
    """Take OTLP over HTTP, as protobuf from the gateway and as JSON from Triton."""
    reported: list[Reported] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_json = "json" in self.headers["content-type"]
            reported.extend(from_json(json.loads(body)) if is_json else from_protobuf(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", reported
    finally:
        server.shutdown()
        server.server_close()


def from_protobuf(body: bytes) -> Iterator[Reported]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        (service,) = [one.value.string_value for one in resource.resource.attributes if one.key == "service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                yield Reported(service, span.name, *ids, span.start_time_unix_nano, span.end_time_unix_nano)


def from_json(body: dict) -> Iterator[Reported]:  # type: ignore[type-arg]
    for resource in body["resourceSpans"]:
        attributes = {one["key"]: one["value"] for one in resource["resource"]["attributes"]}
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                ids = span["traceId"].lower(), span["spanId"].lower(), span.get("parentSpanId", "").lower()
                times = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                yield Reported(attributes["service.name"]["stringValue"], span["name"], *ids, *times)


def test_a_trace_goes_through_gateway_triton_and_its_models(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model")
    env = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    with collector() as (url, reported), api_server(str(model), "--trace-endpoint", url, env=env) as server:
        server.wait_ready()
        headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
        body = {"model": "model", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True, "stream": True}
        response = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)
        assert response.status_code == 200
        assert httpx.post(f"{server.url}/v1/completions", json=body | {"model": "?"}).status_code == 404
        expected = {"POST /v1/completions", "ensemble", "preprocessing", "turbomind", "queue", "prompt", "answer"}
        eventually_sync(lambda: expected <= {span.name for span in reported if span.trace == TRACE})
    spans = [span for span in reported if span.trace == TRACE]
    by_id = {span.id: span for span in spans}

    def ancestors(name: str) -> list[tuple[str, str]]:
        (span,) = [span for span in spans if span.name == name]
        found = []
        while span.parent in by_id:
            span = by_id[span.parent]
            found.append((span.service, span.name))
        assert span.parent == CALLER
        return found

    gateway = [("lmdeploy-gateway", "text_completion model"), ("lmdeploy-gateway", "POST /v1/completions")]
    for phase in ("queue", "prompt", "answer"):
        assert ancestors(phase) == gateway
    triton = [("tritonserver", "ensemble"), ("tritonserver", "InferRequest"), *gateway]
    assert ancestors("preprocessing") == triton
    assert ancestors("turbomind") == triton
    engine = sorted((span for span in spans if span.name in ("queue", "prompt", "answer")), key=lambda span: span.begin)
    assert [span.name for span in engine] == ["queue", "prompt", "answer"]
    (request,) = [span for span in spans if span.name == "POST /v1/completions"]
    assert request.begin <= engine[0].begin <= engine[-1].end <= request.end
