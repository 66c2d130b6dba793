"""Spans of requests and structured logs: what they say, and that they cost nothing and nobody a response."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmdeploy import extras
from lmdeploy.cli.main import main
from lmdeploy.serve.ports import free_ports
from openai_gateway.settings import Settings
from openai_gateway.tracing import export
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway
from tests.support.metrics import metrics_of
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).resolve().parent.parent.parent
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "a secret question"}], "temperature": 0.5}


def post(url: str, body: dict[str, Any], headers: dict[str, str] | None = None, path: str = "chat/completions") -> int:
    response = httpx.post(f"{url}/v1/{path}", json=body, headers=headers, trust_env=False)
    return response.status_code


def spans_of(fake: FakeTriton, file: Path, *requests: tuple[dict[str, Any], dict[str, str]]) -> list[dict[str, Any]]:
    """Ask a traced gateway, and return what it has written when it is over."""
    with running_gateway(Settings(triton_address=fake.address, trace_endpoint=f"file:{file}")) as url:
        for body, headers in requests:
            post(url, body, headers)
    return [json.loads(line) for line in file.read_text().splitlines()]


def named(spans: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (span,) = [span for span in spans if span["name"] == name]
    return span


def span_id(span: dict[str, Any]) -> str:
    return str(span["context"]["span_id"]).removeprefix("0x")


def seconds(span: dict[str, Any]) -> float:
    begin, end = (datetime.fromisoformat(span[key]) for key in ("start_time", "end_time"))
    return (end - begin).total_seconds()


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_leaves_a_tree_of_spans_below_its_callers(fake: FakeTriton, tmp_path: Path, stream: bool) -> None:
    spans = spans_of(fake, tmp_path / "spans", (BODY | {"stream": stream}, TRACED | {"x-request-id": "mine"}))
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{TRACE}"}
    request, prompt = named(spans, "POST /v1/chat/completions"), named(spans, f"chat {MODEL}")
    assert request["parent_id"] == f"0x{CALLER}"
    assert request["attributes"]["http.response.status_code"] == 200
    assert request["attributes"]["lmdeploy.request_id"] == "mine"
    assert prompt["parent_id"] == request["context"]["span_id"]
    reported = prompt["attributes"]
    assert reported["gen_ai.operation.name"] == "chat"
    assert reported["gen_ai.request.model"] == reported["gen_ai.response.model"] == MODEL
    assert reported["gen_ai.request.temperature"] == 0.5
    assert reported["gen_ai.response.finish_reasons"] == ["stop"]
    assert (reported["gen_ai.usage.input_tokens"], reported["gen_ai.usage.output_tokens"]) == (7, 6 if stream else 2)
    for name, expected in (("queue", 0.25), ("prompt", 0.5), ("answer", 1.0)):
        phase = named(spans, name)
        assert phase["parent_id"] == prompt["context"]["span_id"]
        assert seconds(phase) == pytest.approx(expected, abs=1e-5)
    assert "secret" not in (tmp_path / "spans").read_text()


def test_triton_goes_on_with_the_trace(fake: FakeTriton, tmp_path: Path) -> None:
    spans = spans_of(fake, tmp_path / "spans", (BODY, TRACED))
    (received,) = fake.requests
    assert received.metadata["traceparent"] == f"00-{TRACE}-{span_id(named(spans, f'chat {MODEL}'))}-01"
    assert received.id == named(spans, f"chat {MODEL}")["attributes"]["lmdeploy.engine.request_id"]


def test_what_a_caller_does_not_trace_is_not_traced_in_triton(fake: FakeTriton, tmp_path: Path) -> None:
    untraced = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    assert spans_of(fake, tmp_path / "spans", (BODY, untraced)) == []
    (received,) = fake.requests
    assert "traceparent" not in received.metadata


def test_a_failure_is_seen_in_the_spans(fake: FakeTriton, tmp_path: Path) -> None:
    fake.script = Script(fail_after=0)
    spans = spans_of(fake, tmp_path / "spans", (BODY, TRACED))
    prompt, request = named(spans, f"chat {MODEL}"), named(spans, "POST /v1/chat/completions")
    assert prompt["status"]["status_code"] == request["status"]["status_code"] == "ERROR"
    assert prompt["attributes"]["error.type"] == "INTERNAL"


def test_each_choice_has_a_response_and_all_one_queue(fake: FakeTriton, tmp_path: Path) -> None:
    names = [span["name"] for span in spans_of(fake, tmp_path / "spans", (BODY | {"n": 3}, TRACED))]
    assert (names.count("queue"), names.count("prompt"), names.count("answer")) == (1, 3, 3)


def test_health_and_metrics_leave_no_spans(fake: FakeTriton, tmp_path: Path) -> None:
    file = tmp_path / "spans"
    with running_gateway(Settings(triton_address=fake.address, trace_endpoint=f"file:{file}")) as url:
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 200
    assert file.read_text() == ""


def test_a_collector_that_is_away_costs_no_response_and_is_counted(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setattr(export, "_TIMEOUT", 0.5)
    (port,) = free_ports(1)
    settings = Settings(triton_address=fake.address, trace_endpoint=f"http://127.0.0.1:{port}/v1/traces")
    with running_gateway(settings) as url:

        def lost() -> float:
            return metrics_of(httpx.get(f"{url}/metrics", trust_env=False).text).one(
                "lmdeploy_gateway_spans_lost_total"
            )

        assert lost() == 0
        assert post(url, BODY) == 200
        eventually_sync(lambda: lost() >= 5)
        assert post(url, BODY | {"stream": True}) == 200


def test_without_an_endpoint_nothing_is_imported_and_nothing_asked_of_triton(fake: FakeTriton) -> None:
    program = (
        "import sys; from openai_gateway.app import create_app; from openai_gateway.settings import Settings;"
        "create_app(Settings()); print(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"
    with running_gateway(Settings(triton_address=fake.address)) as url:
        assert post(url, BODY, TRACED) == 200
    (received,) = fake.requests
    assert "traceparent" not in received.metadata
    assert "engine_seconds" not in received.outputs


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://host/x", "file:", "http://", "http://host:port"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "gateway", "--trace-endpoint", endpoint])
    assert f"must be http://HOST:4318, https://... or file:PATH, got {endpoint}" in capsys.readouterr().err


def test_what_to_install_is_said_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(extras.MODULES, "trace", ("no_such_sdk",))
    with pytest.raises(SystemExit):
        main(["serve", "gateway", "--trace-endpoint", "http://localhost:4318"])
    assert f"run: make -C {ROOT} dev" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_each_line_of_a_json_log_is_an_object_with_its_requests_id(fake: FakeTriton, workers: str) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "lmdeploy", "serve", "gateway", "--triton-address", fake.address]
    command += ["--server-name", "127.0.0.1", "--server-port", str(port), "--workers", workers]
    command += ["--log-format", "json", "--log-level", "INFO"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "OpenAI API" in served.stdout.readline()
        assert post(f"http://127.0.0.1:{port}", BODY, {"x-request-id": "mine"}) == 200
    finally:
        served.terminate()
        _, reported = served.communicate(timeout=180)
    lines = [json.loads(line) for line in reported.splitlines()]
    assert all({"time", "level", "logger", "message", "process"} <= line.keys() for line in lines)
    mine = [line["logger"] for line in lines if line.get("request_id") == "mine"]
    assert {"openai_gateway.gateway", "openai_gateway.middleware.access"} <= set(mine)
