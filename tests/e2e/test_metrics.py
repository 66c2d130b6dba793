"""Metrics and traces of a gateway in front of a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.tritonserver import TritonServer
from openai_gateway.settings import Settings
from tests.repository.test_dashboards import engine_names
from tests.support.commands import api_server
from tests.support.gateways import running_gateway
from tests.support.http_host import Reply, Request, running_host
from tests.support.metrics import Metrics, engine_metrics, metrics_of
from tests.support.queries import SCRAPED, SCRAPER, all_queries
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync


@pytest.fixture(scope="module")
def page(triton_server: TritonServer) -> Metrics:
    """Metrics after one response of eight tokens."""
    settings = Settings(triton_address=triton_server.grpc_address, triton_metrics_url=triton_server.metrics_url)
    body = {"model": DEFAULT_MODEL_NAME, "prompt": "One, two,", "max_tokens": 8, "ignore_eos": True, "stream": True}
    with running_gateway(settings) as url, httpx.Client(base_url=url, trust_env=False) as http:
        assert http.post("/v1/completions", json=body).status_code == 200

        def scrape() -> Metrics:
            return metrics_of(http.get("/metrics").text)

        eventually_sync(lambda: scrape().one("turbomind_requests_running") == 0)
        return scrape()


def test_every_metric_that_is_asked_for_is_there(page: Metrics) -> None:
    labels = {name: {key for key, _ in found} for name, found in page.values}
    for where, metrics in all_queries().items():
        for name, selected in metrics:
            assert name in labels or name == SCRAPED, f"{where} asks for {name}"
            assert selected - SCRAPER <= labels.get(name, set()), f"{where} selects {name} by {selected}"


def test_the_engine_reports_all_that_the_backend_names(page: Metrics) -> None:
    assert engine_names() - page.names == set()


def test_other_servers_names_say_what_ours_say(page: Metrics) -> None:
    served = {"model_name": DEFAULT_MODEL_NAME, "engine": "0"}
    for native, reference in (
        ("turbomind_requests_running", "vllm:num_requests_running"),
        ("turbomind_requests_waiting", "vllm:num_requests_waiting"),
        ("turbomind_tokens_in_total", "vllm:prompt_tokens_total"),
        ("turbomind_tokens_out_total", "vllm:generation_tokens_total"),
        ("turbomind_preemptions_total", "vllm:num_preemptions_total"),
        ("turbomind_requests_waiting", "lmdeploy:num_requests_waiting"),
        ("turbomind_tokens_out_total", "lmdeploy:generation_tokens_total"),
    ):
        assert page.one(reference, **served) == page.one(native, model="turbomind")
    assert page.one("vllm:generation_tokens_total") >= 8
    assert page.one("vllm:kv_cache_usage_perc", **served) == 0
    blocks = page.one("turbomind_cache_blocks_total")
    assert page.one("vllm:cache_config_info", num_gpu_blocks=f"{blocks:.0f}", **served) == 1
    turbomind_labels = {"model": "turbomind", "version": "1"}
    assert page.one("nv_trt_llm_request_metrics", request_type="waiting", **turbomind_labels) == 0
    assert page.one("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max", **turbomind_labels) == blocks
    assert page.one("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="fraction", **turbomind_labels) == 0


def test_the_engine_has_timed_the_queue(page: Metrics) -> None:
    served = {"model_name": DEFAULT_MODEL_NAME, "engine": "0"}
    for family, labels in (
        ("turbomind_request_queue_seconds", {"model": "turbomind"}),
        ("vllm:request_queue_time_seconds", served),
        ("lmdeploy:request_queue_time_seconds", served),
    ):
        assert page.one(f"{family}_count", **labels) == page.one("turbomind_requests_admitted_total")
        assert page.one(f"{family}_sum", **labels) == pytest.approx(page.one("turbomind_queue_seconds_total"), rel=1e-4)
        assert page.one(f"{family}_bucket", le="7680", **labels) == page.one(f"{family}_count", **labels)


def test_response_formats_are_counted_and_timed(triton_server: TritonServer) -> None:
    settings = Settings(triton_address=triton_server.grpc_address)
    before = engine_metrics(triton_server)
    with running_gateway(settings) as url, httpx.Client(base_url=url, trust_env=False) as http:

        def status(grammar: str) -> int:
            body = {"model": DEFAULT_MODEL_NAME, "prompt": "A", "max_tokens": 4, "guided_grammar": grammar}
            return http.post("/v1/completions", json=body).status_code

        # Schemas and expressions are refused by the gateway; what is wrong with a grammar, the engine finds.
        grammars = ("root ::= [0-9]{3}", "root ::= [0-9]{3}", "root ::= missing_rule")
        assert [status(grammar) for grammar in grammars] == [200, 200, 400]

    def grown(name: str) -> float:
        return engine_metrics(triton_server)[name] - before[name]

    eventually_sync(lambda: grown("grammar_failures_total") == 1)
    assert grown("grammar_requests_total") == 3
    assert grown("grammar_compilations_total") == grown("grammar_hits_total") == 1
    assert grown("request_grammar_seconds_count") == 2
    assert 0 < grown("request_grammar_seconds_sum") < 60


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

    def take(request: Request) -> Reply:
        is_json = "json" in request.headers["content-type"]
        reported.extend(from_json(json.loads(request.body)) if is_json else from_protobuf(request.body))
        return Reply()

    with running_host(take) as host:
        yield host.url, reported


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
