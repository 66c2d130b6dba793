"""The spans of a request: one of the gateway, one for each prompt, and below it the phases of the engine.

Names of attributes are those of OpenTelemetry's conventions for generative AI; texts are in none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmdeploy.serve.request import GenerateChunk, GenerateRequest
from openai_gateway.registry import MONITORING
from openai_gateway.tracing.export import provider_for

_FIELDS = {  # ours -> of the conventions, after gen_ai.request.
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "random_seed": "seed",
    "stop_words": "stop_sequences",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "n": "choice.count",
}
_PHASES = ("queue", "prompt", "answer")
_W3C = TraceContextTextMapPropagator()
_SECOND = 1_000_000_000  # ns


class Tracing:
    """Makes the spans of one gateway.

    ``endpoint``: as ``checked_endpoint`` returns it. ``on_lost``: called with the number of spans that could not be
    sent.
    """

    def __init__(self, endpoint: str, on_lost: Callable[[int], object]) -> None:
        self.model = ""  # the served model's name, once somebody has asked for it
        self._provider: TracerProvider = provider_for(endpoint, on_lost)
        self.tracer: Tracer = self._provider.get_tracer("openai_gateway")

    def begin(self, request: GenerateRequest) -> PromptSpan:
        """Return the span of a prompt that is about to go to the engine, below that of the request being handled."""
        return self.of_model(self.model).begin(request)

    def of_model(self, name: str) -> ModelTracer:
        """Return the tracer of one of several models."""
        return ModelTracer(self.tracer, name)

    def close(self) -> None:
        """Send off what is left. Takes seconds where nobody takes it."""
        self._provider.shutdown()


class ModelTracer:
    """Makes the spans of prompts to one of several models."""

    def __init__(self, tracer: Tracer, model: str) -> None:
        self._tracer, self._model = tracer, model

    def begin(self, request: GenerateRequest) -> PromptSpan:
        """Return the span of a prompt, as `Tracing.begin`."""
        return PromptSpan(self._tracer, request, request.fields.get("lora_name") or self._model)


class PromptSpan:
    """One prompt on its way through the engine."""

    def __init__(self, tracer: Tracer, request: GenerateRequest, model: str) -> None:
        operation = "chat" if request.messages is not None else "text_completion"
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "lmdeploy",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "lmdeploy.engine.request_id": request.request_id,
        }
        for field, attribute in _FIELDS.items():
            if field in request.fields:
                attributes[f"gen_ai.request.{attribute}"] = request.fields[field]
        if "session_id" in request.fields:
            attributes["gen_ai.conversation.id"] = str(request.fields["session_id"])
        self._tracer = tracer
        self._span = tracer.start_span(f"{operation} {model}".strip(), kind=SpanKind.CLIENT, attributes=attributes)
        self._context = trace.set_span_in_context(self._span)
        self._reasons: list[str] = []
        self._tokens = 0
        self._is_queue_reported = False
        carrier: dict[str, str] = {}
        if self._span.is_recording():  # Triton records whatever it is handed
            _W3C.inject(carrier, self._context)
        # Trace context that Triton continues; empty where nobody looks at it
        self.traceparent = carrier.get("traceparent", "")

    def see(self, chunk: GenerateChunk) -> None:
        """Look at the last chunk of a response."""
        self._reasons.append(chunk.finish_reason or "")
        self._tokens += chunk.generate_token_len
        self._report_engine(chunk, time.time_ns())
        self._span.set_attributes(
            {
                "gen_ai.response.finish_reasons": self._reasons,
                "gen_ai.usage.input_tokens": chunk.input_token_len,
                "gen_ai.usage.output_tokens": self._tokens,
            }
        )

    def fail(self, error: Exception) -> None:
        """Say what went wrong."""
        self._span.set_attribute("error.type", getattr(error, "code", None) or type(error).__name__)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """Be over."""
        self._span.end()

    def _report_engine(self, chunk: GenerateChunk, now: int) -> None:
        """Make spans of what the engine's clock says, up to this moment."""
        reported = dict(zip(_PHASES, chunk.engine_seconds, strict=False))
        phases = [(name, seconds) for name, seconds in reported.items() if seconds >= 0]
        begin = now - sum(int(seconds * _SECOND) for _, seconds in phases)
        for name, seconds in phases:
            end = begin + int(seconds * _SECOND)
            if name != "queue" or not self._is_queue_reported:
                attributes = {"lmdeploy.choice": chunk.index}
                span = self._tracer.start_span(name, self._context, attributes=attributes, start_time=begin)
                span.end(end)
            begin = end
        self._is_queue_reported = True


class TraceRequests:
    """ASGI middleware: a span around each request, below that of the caller's ``traceparent``."""

    def __init__(self, app: ASGIApp, *, tracing: Tracing) -> None:
        self._app = app
        self._tracer = tracing.tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http" or scope["path"] in MONITORING:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        parent: Context = propagate.extract(headers)
        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "lmdeploy.request_id": scope["lmdeploy.request_id"],
        }
        with self._tracer.start_as_current_span(
            scope["method"], parent, kind=SpanKind.SERVER, attributes=attributes
        ) as span:

            async def with_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _record_response(span, message["status"])
                await send(message)

            try:
                await self._app(scope, receive, with_status)
            finally:
                if route := getattr(scope.get("route"), "path", ""):
                    span.set_attribute("http.route", route)
                    span.update_name(f"{scope['method']} {route}")


def _record_response(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
