"""Asyncio client of the served models, over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextvars import ContextVar
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.cache_report import cache_report
from lmdeploy.serve.channel import Channel
from lmdeploy.serve.errors import TritonRequestError, TritonUnavailable, request_error
from lmdeploy.serve.request import GenerateChunk, GenerateRequest, SleepReport
from lmdeploy.serve.response_stream import ResponseStream
from lmdeploy.serve.wire import (
    ENGINE,
    ENSEMBLE,
    ENSEMBLE_VISION,
    conversation_json,
    decode_chunk,
    decode_json,
    decode_text,
    decode_token_bytes,
    decode_token_ids,
    encode_control,
    encode_detokenize,
    encode_end_session,
    encode_generate,
    encode_limits,
    encode_preprocessing,
    encode_stop,
    encode_tokenize,
)

__all__ = [
    "GenerateChunk",
    "GenerateRequest",
    "SleepReport",
    "TritonClient",
    "TritonRequestError",
    "TritonUnavailable",
]

logger = logging.getLogger(__name__)

# An error of a stream, as our models write it for a request that asks for codes.
_CODE = re.compile("(?P<code>[A-Z_]+): (?P<message>.*)", re.DOTALL)
# Triton's prefix for an error of a model in an ensemble.
_IN_ENSEMBLE = re.compile(rf"in ensemble '(?:{ENSEMBLE}|{ENSEMBLE_VISION})(?:\.[^']*)?', ")
# How Triton begins to say that it does not serve a model, has lost its process, or stops.
_TRITON_IS_AWAY = ("Request for unknown model", "Stub process", "Server is stopping", "Server exiting")
_READY_TIMEOUT = 2.0  # seconds
_CANCEL_TIMEOUT = 5.0  # seconds
_END_SECONDS = 5.0  # in which a stream ends whose request was stopped
_CANCEL_RETRIES = (0.05, 0.1, 0.2, 0.4, 0.8)  # seconds before each
_CLIENT_ERRORS = frozenset({"INVALID_ARGUMENT", "NOT_FOUND"})
_RESPONSES = _CLIENT_ERRORS | {"INTERNAL"}  # so are those without a code, of older engines
_TOKENIZE_TIMEOUT = 30.0  # seconds
_LOAD_TIMEOUT = 3600.0  # seconds; a model is loaded, or waits for its open requests
_UNTIL_CANCELLED = 60.0  # seconds that a call has left to end by itself when its caller has stopped waiting

_Response = TypeVar("_Response")

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""Whom the texts are for that this task has tokenized: callers take turns in preprocessing."""


class Ledger(Protocol):
    """Observer of open requests of the engine."""

    def begin(self, request_id: str) -> None:
        """Record a request that is about to be sent."""

    def end(self, request_id: str) -> None:
        """Record the end or cancellation of a request."""


class RequestTrace(Protocol):
    """Trace of one request of `TritonClient.generate`."""

    traceparent: str  # what Triton continues the trace from; empty: none

    def see(self, chunk: GenerateChunk) -> None:
        """Record the last chunk of a choice."""

    def fail(self, error: Exception) -> None:
        """Record an error."""

    def end(self) -> None:
        """Record the end, or that the caller left."""


class RequestTracer(Protocol):
    """Factory of request traces."""

    def begin(self, request: GenerateRequest) -> RequestTrace:
        """Return the trace of a request that is about to be sent."""


class TritonClient:
    """One gRPC channel to a Triton that serves our model repository.

    Use it inside one event loop. It connects by itself, and again when the server was restarted.
    """

    def __init__(
        self, address: str, ledger: Ledger | None = None, control_key: str = "", tracer: RequestTracer | None = None
    ) -> None:
        self._tracer = tracer  # follows the requests of `generate`, whose last chunks then say how long the engine took
        # Key for loading adapters and administering the cache; empty: the server was started without one
        self._control_key = control_key
        self.address = address  # ``host:port`` of Triton's gRPC service
        self._ledger = ledger  # notified of the requests of `generate`
        self._suffix = ""
        self._channel = Channel(address)
        self._cancellations: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> TritonClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def of_model(self, suffix: str, tracer: RequestTracer | None = None) -> TritonClient:
        """Return a client of one of several models, over the same channel, which it does not close.

        ``suffix``: what the model's names in Triton end with, as ``.small``.
        """
        other = copy.copy(self)
        other._suffix, other._tracer = suffix, tracer
        return other

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        """Run one request and yield its responses as they come.

        Leaving before the last chunk (``aclose``, an exception, a cancelled task) cancels the request in the engine.
        Raises `TritonUnavailable` if the server cannot be reached, or went away, and `TritonRequestError` if the server
        refused or failed this request. ``request``: with ``stream=False`` there is one chunk a choice, with the whole
        response. Yields the last one of each choice has a ``finish_reason``.
        """
        trace = None if self._tracer is None else self._tracer.begin(request)
        metadata = (("traceparent", trace.traceparent),) if trace and trace.traceparent else None
        request.return_engine_seconds |= trace is not None
        message, call = encode_generate(request), self._stub().ModelStreamInfer(metadata=metadata)
        unfinished = request.fields.get("n", 1)
        over = False  # nothing is left to cancel
        is_prepared = request.input_ids is not None
        if self._ledger is not None:
            self._ledger.begin(request.request_id)
        stream = self._stream(call, message)
        try:
            async with self._typed_errors(call):
                while (response := await self._next(stream)) is not None:
                    chunk, is_prepared = decode_chunk(response), True
                    if chunk.finish_reason is not None:
                        unfinished -= 1
                        over = unfinished == 0
                        if trace is not None:
                            trace.see(chunk)
                        if chunk.cache_report is not None:
                            chunk.cache_report = await cache_report(request, chunk.cache_report, self.tokenize)
                    yield chunk
            if not over:
                raise TritonRequestError("INTERNAL", "the response ended without a finish reason")
        except TritonRequestError as error:
            # Refused, so it does not run. After any other error it may, although we no longer hear of it.
            over = error.code in _CLIENT_ERRORS
            if trace is not None:
                trace.fail(error)
            raise
        except TritonUnavailable as error:
            if trace is not None:
                trace.fail(error)
            raise
        finally:
            if trace is not None:
                trace.end()
            if not over:
                self._cancel_soon(request.request_id, stream, is_prepared)
            else:
                self._end(request.request_id)

    async def cancel(self, request_id: str, is_prepared: bool = False) -> None:
        """Cancel a request; an unknown one is ignored.

        Raises `TritonUnavailable` if the server cannot be reached. ``is_prepared``: whether the engine has its prompt;
        else that is not prepared any further.
        """
        await asyncio.gather(
            *(() if is_prepared else (self._drop(request_id),)), self._control(encode_stop(request_id))
        )

    async def cancel_session(self, session_id: int) -> None:
        """Cancel the running request of a session, if any.

        Raises `TritonUnavailable` if the server cannot be reached.
        """
        with contextlib.suppress(TritonRequestError):
            await self._control(encode_stop(session_id=session_id))

    async def end_session(self, session_id: int) -> None:
        """Delete a session of the engine; an unknown one is ignored.

        Raises `TritonUnavailable` if the server cannot be reached.
        """
        with contextlib.suppress(TritonRequestError):
            await self._control(encode_end_session(session_id))

    async def adapters(self) -> dict[str, str]:
        """Return the LoRA adapters that requests may name, with the note that each was loaded with.

        Raises `TritonUnavailable` if the server cannot be reached.
        """
        return dict(await self._administer(_TOKENIZE_TIMEOUT, lora_control="list"))

    async def context_len(self) -> int:
        """Return the maximum number of tokens of prompt and response together.

        Raises `TritonUnavailable` if the server cannot be reached, and `TritonRequestError` if it is an older one,
        which does not report this.
        """
        try:
            return int((await self._query(encode_limits(), _READY_TIMEOUT))["session_len"])
        except (ValueError, KeyError, TypeError):
            raise TritonRequestError("INTERNAL", "the engine did not report its limits") from None

    async def load_adapter(self, name: str, path: str, note: str = "") -> None:
        """Load a LoRA adapter from a folder of the server's machine; a chat template in it is that of its prompts.

        Raises `TritonUnavailable` if the server cannot be reached, and `TritonRequestError` if the name is taken, or
        the adapter does not fit the model; the text says why.
        """
        loaded = {"lora_control": "load", "lora_name": name, "lora_path": path}
        await self._administer(_TOKENIZE_TIMEOUT, **loaded, lora_note=note)
        try:
            await self._infer(encode_preprocessing(loaded, self._control_key))
        except TritonRequestError:
            await self._administer(_TOKENIZE_TIMEOUT, lora_control="unload", lora_name=name)
            raise

    async def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter: later requests are refused, open ones finish.

        Raises `TritonUnavailable` if the server cannot be reached, and `TritonRequestError` if there is none of that
        name.
        """
        unloaded = {"lora_control": "unload", "lora_name": name}
        await self._administer(_TOKENIZE_TIMEOUT, **unloaded)
        await self._infer(encode_preprocessing(unloaded, self._control_key))

    async def control_cache(
        self, action: str, input_ids: Sequence[int] = (), salt: str | None = None, adapter: str | None = None
    ) -> dict[str, Any]:
        """Run a cache control operation; return what the cache holds then, by tier.

        ``action`` is ``report``, ``drop_memory``, ``drop_files``, ``pin`` or ``unpin``; the last two are of a prompt,
        with the salt and the LoRA adapter that its requests have. Raises `TritonUnavailable` if the server cannot be
        reached, and `TritonRequestError` if the engine refuses it; the text says why.
        """
        texts = {"cache_control": action, "cache_salt": salt, "lora_name": adapter}
        message = encode_control(texts, self._control_key, input_ids)
        report: dict[str, Any] = await self._query(message, _TOKENIZE_TIMEOUT)
        return report

    async def sleep_report(self) -> SleepReport:
        """Return the memory that the model holds, and whether it sleeps.

        Raises `TritonUnavailable` if the server cannot be reached, or does not serve the model, and
        `TritonRequestError` if its engine does not sleep.
        """
        return SleepReport(**await self._administer(_READY_TIMEOUT, sleep_control="report"))

    async def sleep(self, level: int) -> SleepReport:
        """Put the model to sleep once its open requests have ended; the next request wakes it.

        ``level`` 1 gives the memory of its cache back, 2 that of its weights too. Raises as `sleep_report`.
        """
        message = encode_control({"sleep_control": "sleep"}, self._control_key, sleep_level=level)
        return SleepReport(**await self._query(message, _LOAD_TIMEOUT))

    async def wake(self, keep_alive: float | None = None) -> SleepReport:
        """Load the model if it sleeps; ``keep_alive`` is as in requests. Raises as `sleep_report`."""
        message = encode_control({"sleep_control": "wake"}, self._control_key, keep_alive=keep_alive)
        return SleepReport(**await self._query(message, _LOAD_TIMEOUT))

    async def tokenize(
        self,
        *,
        text: str | None = None,
        messages: Sequence[dict[str, Any]] | None = None,
        tools: Sequence[dict[str, Any]] = (),
        template_options: dict[str, Any] | None = None,
        adapter: str | None = None,
        add_special_tokens: bool | None = None,
    ) -> list[int]:
        """Return the token ids of a text, or of a conversation with the chat template applied.

        ``tools`` are those of the conversation, in OpenAI's format; ``template_options`` are further variables for its
        template; ``adapter`` is the LoRA adapter it is for; ``add_special_tokens`` is for the tokenizer, None: as
        prompts of responses have them. Raises `TritonUnavailable` if the server cannot be reached, and
        `TritonRequestError` if the prompt was refused.
        """
        name, content, tools_json = "text_input", text or "", ""
        if messages is not None:
            name, content = "messages", conversation_json(messages, template_options)
            tools_json = json.dumps(list(tools), ensure_ascii=False) if tools else ""
        others = {"tools": tools_json, "lora_name": adapter, "caller": CALLER.get()}
        message = encode_tokenize(name, content, add_special_tokens, **others)
        return decode_token_ids(await self._infer(message))

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens; incomplete characters are U+FFFD.

        Raises `TritonUnavailable` if the server cannot be reached, or has no model that detokenizes, and
        `TritonRequestError` if a token was refused.
        """
        return decode_text(await self._infer(encode_detokenize(token_ids, skip_special_tokens)))

    async def token_bytes(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> list[bytes]:
        """Return the bytes of each token by itself; raises as `detokenize`."""
        return decode_token_bytes(await self._infer(encode_detokenize(token_ids, skip_special_tokens, as_bytes=True)))

    async def is_ready(self) -> bool:
        """Return whether the server answers, every model is ready, prompts are prepared and the engine takes requests.

        Triton keeps calling a model ready whose engine is starting its workers again, so the engine is asked itself;
        it alone where there are several models, as Triton answers nothing else while one is being loaded.
        """
        try:
            if not self._suffix:
                response = await self._stub().ServerReady(service_pb2.ServerReadyRequest(), timeout=_READY_TIMEOUT)
                if not response.ready:
                    return False
            await asyncio.gather(
                self._administer(_READY_TIMEOUT, lora_control="list"),
                self._infer(encode_tokenize("text_input", "a"), _READY_TIMEOUT),
            )
        except (grpc.aio.AioRpcError, TritonUnavailable):
            return False
        except TritonRequestError as error:
            # A refusal is a response too, of an engine that shows its adapters to nobody. A deadline is none.
            return error.code in _RESPONSES
        return True

    async def model_name(self) -> str:
        """Return the name of the served model: its configured name, else its directory's.

        Raises `TritonUnavailable` if the server cannot be reached, or does not serve the engine.
        """
        request = service_pb2.ModelConfigRequest(name=ENGINE)
        try:
            response = await self._stub().ModelConfig(request, timeout=_TOKENIZE_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise TritonUnavailable(self._unavailable(error.details())) from None
        parameters = response.config.parameters
        names = (parameters[key].string_value for key in ("served_model_name", "model_name"))
        name: str = next(filter(None, names), "")
        path: str = parameters["model_path"].string_value
        return name or (PurePath(path).name if path else DEFAULT_MODEL_NAME)

    async def close(self) -> None:
        """Finish pending cancellations, and close the channel."""
        while self._cancellations:
            await asyncio.gather(*self._cancellations, return_exceptions=True)
        await self._channel.close()

    def _stub(self) -> Any:
        return self._channel.stub()

    async def _drop(self, request_id: str) -> None:
        with contextlib.suppress(TritonRequestError):  # an older server
            await self._infer(encode_preprocessing({"stop_request_id": request_id}), _CANCEL_TIMEOUT)

    async def _control(self, message: service_pb2.ModelInferRequest) -> None:
        """Send a control request to the engine, and ignore its response."""
        await self._only_response(message, _CANCEL_TIMEOUT)

    async def _administer(self, timeout: float, **texts: str) -> Any:
        """Send a control request that has texts alone, and return its response."""
        return await self._query(encode_control(texts, self._control_key), timeout)

    async def _query(self, message: service_pb2.ModelInferRequest, timeout: float) -> Any:
        """Send a control request that the engine answers with one response, and return that."""
        response = await self._only_response(message, timeout)
        if response is None:
            raise TritonRequestError("INTERNAL", "the engine did not respond to a control request")
        return decode_json(response)

    async def _only_response(
        self, message: service_pb2.ModelInferRequest, timeout: float
    ) -> service_pb2.ModelInferResponse | None:
        """Send the one request of a stream; return its first response, None if it has none."""
        call = self._stub().ModelStreamInfer(timeout=timeout + _UNTIL_CANCELLED)
        stream = self._stream(call, message)

        async def read() -> service_pb2.ModelInferResponse | None:
            first = last = await self._next(stream)
            while last is not None:
                last = await self._next(stream)
            return first

        async with self._typed_errors(call):
            return await self._within(timeout, read())

    def _stream(self, call: Any, message: service_pb2.ModelInferRequest) -> ResponseStream:
        """Send the one request of a stream."""
        message.model_name += self._suffix
        return ResponseStream(self._channel, call, message)

    async def _next(self, stream: ResponseStream) -> service_pb2.ModelInferResponse | None:
        """Return the next response of a stream, None at its end; an error is raised once the stream has ended."""
        response = await stream.read()
        if response is grpc.aio.EOF:
            return None
        if response is None:  # gRPC could not read it
            raise TritonRequestError("INTERNAL", "Triton sent a response that is not valid protobuf")
        if not response.error_message:
            return response.infer_response
        while await stream.read() is not grpc.aio.EOF:
            pass
        raise self._reported_error(response.error_message)

    async def _infer(
        self, message: service_pb2.ModelInferRequest, timeout: float = _TOKENIZE_TIMEOUT
    ) -> service_pb2.ModelInferResponse:
        message.model_name += self._suffix

        async def infer() -> service_pb2.ModelInferResponse:
            return await self._stub().ModelInfer(message, timeout=timeout + _UNTIL_CANCELLED)

        try:
            return await self._within(timeout, asyncio.shield(self._channel.run(infer())))
        except grpc.aio.AioRpcError as error:
            raise self._typed_error(error.code(), error.details()) from None

    async def _within(self, timeout: float, waiting: Awaitable[_Response]) -> _Response:
        """Wait for a response with a deadline; the call itself goes on (see `Channel.run`)."""
        try:
            return await asyncio.wait_for(waiting, timeout)
        except asyncio.TimeoutError:
            raise self._typed_error(grpc.StatusCode.DEADLINE_EXCEEDED, f"no response in {timeout:g} s") from None

    @contextlib.asynccontextmanager
    async def _typed_errors(self, call: Any) -> AsyncIterator[None]:
        """Convert gRPC's errors of `call` to ours."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._typed_error(error.code(), error.details()) from None
        except asyncio.InvalidStateError:  # written to after it ended; its status says why it ended
            raise self._typed_error(await call.code(), await call.details()) from None
        except grpc.aio.InternalError as error:  # the call broke, for example by ending under an operation
            raise TritonRequestError("INTERNAL", f"the gRPC call broke: {error}") from None

    def _typed_error(self, code: grpc.StatusCode, details: str | None) -> TritonUnavailable | TritonRequestError:
        return self._error(code.name, _without_ensemble(details or "no details given"))

    def _reported_error(self, text: str) -> TritonUnavailable | TritonRequestError:
        """Return the error a stream reports. Our models put the code before it, Triton itself has none for it."""
        text = _without_ensemble(text)
        if status := _CODE.fullmatch(text):
            return self._error(status["code"], status["message"])
        is_away = text.startswith(_TRITON_IS_AWAY)
        return self._error("UNAVAILABLE" if is_away else "INTERNAL", text)

    def _error(self, code: str, message: str) -> TritonUnavailable | TritonRequestError:
        if code == "UNAVAILABLE":
            return TritonUnavailable(self._unavailable(message))
        return request_error(code, message)

    def _unavailable(self, details: str | None) -> str:
        return f"Triton at {self.address} is not available: {details or 'no details given'}"

    def _cancel_soon(self, request_id: str, stream: ResponseStream, is_prepared: bool) -> None:
        """Cancel in its own task: the caller may be in the middle of being cancelled itself."""
        task = asyncio.get_running_loop().create_task(self._leave(request_id, stream, is_prepared))
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)
        task.add_done_callback(lambda _: self._end(request_id))

    def _end(self, request_id: str) -> None:
        if self._ledger is not None:
            self._ledger.end(request_id)

    async def _leave(self, request_id: str, stream: ResponseStream, is_prepared: bool) -> None:
        await self._try_cancel(request_id, is_prepared)
        await stream.end(_END_SECONDS)

    async def _try_cancel(self, request_id: str, is_prepared: bool) -> None:
        """Cancel, and again when that fails: a request nobody reads would run to its end."""
        for delay in (*_CANCEL_RETRIES, None):
            try:
                await self.cancel(request_id, is_prepared)
            except (TritonUnavailable, TritonRequestError) as error:
                if delay is None:
                    logger.warning("request %s was not cancelled in the engine: %s", request_id, error)
                    return
                await asyncio.sleep(delay)
            else:
                return


def _without_ensemble(message: str) -> str:
    found = _IN_ENSEMBLE.match(message)
    return message[found.end() :] if found else message
