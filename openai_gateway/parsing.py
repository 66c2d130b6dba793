"""Request body validation at a bounded cost.

Parsing keeps Python's interpreter lock, up to half a second for a body of 8 MiB: all other requests would wait. So a
long body is parsed in another process, ``python -m openai_gateway.parsing``, one at a time, in turn by API key.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from functools import cache
from typing import Any, cast

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from lmdeploy.limited_process import LimitedProcess, ProcessLimitError, handle_requests
from lmdeploy.serve.heap import trim_heap
from openai_gateway.errors import BODY, ApiError, api_of
from openai_gateway.middleware.api_keys import key_of
from openai_gateway.middleware.body_limit import SHORT
from openai_gateway.shares import Shares
from openai_gateway.validation_errors import validation_error

# Size in memory, not only in bytes: `[],` is three bytes, and 64 as an object of Python's.
MAX_VALUES = 1_000_000  # keys among them; as many tokens as a prompt may have
MAX_STRINGS = 262_144  # keys among them
MAX_CONTAINERS = 32_768  # lists and objects; one that becomes a model takes a thousand bytes
_MAX_RESULT_LEN = 2**31  # bytes
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # in pairs a character, alone none; `json` takes either
# pydantic's messages for bytes that are not UTF-8, and for halves of surrogate pairs.
_NO_TEXT = ("unicode code point", "surrogate", "end of hex escape")
_SUBJECT = "reading the request body"
_PROCESS = LimitedProcess("openai_gateway.parsing", _SUBJECT, cpu_seconds=20.0, memory_bytes=2**32)
_THREADS = ThreadPoolExecutor(1, thread_name_prefix="parsing")  # talks with that process
_TURNS = Shares(1)


class RejectedBody(RequestValidationError):
    """A body that is not of the model of its route."""

    def __init__(self, reported: ApiError, model: object = None) -> None:
        super().__init__([], body={"model": model})
        self.reported = reported  # what its client reads


class BoundedRoute(APIRoute):
    """A route whose body is parsed and validated before FastAPI would, within the bounds of this module."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        annotation = cast(Any, self.body_field.field_info.annotation)

        async def bounded(request: Request) -> Response:
            if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
                message = f"Bodies with content-encoding {encoding[:64]} are not read; send them without."
                raise ApiError(415, message, code="unsupported_encoding")
            raw = await request.body()
            # Not all of Ollama's clients say that they send JSON; OpenAI and Anthropic want it said.
            is_json = _is_json(request.headers.get("content-type", ""))
            if not raw or not (is_json or api_of(request.scope["path"]) == "ollama"):
                return await handler(request)  # refuses it
            if len(raw) <= SHORT:
                value = parse(raw, annotation)
            else:
                async with _TURNS.taken(key_of(request.scope)):
                    if await request.is_disconnected():
                        raise ClientDisconnect
                    value = await asyncio.get_running_loop().run_in_executor(_THREADS, parse_isolated, raw, annotation)
            request.scope[BODY] = value
            scope = request.scope if is_json else _as_json(request.scope)
            return await handler(_ParsedRequest(scope, request.receive, raw, value))

        return bounded


class _ParsedRequest(Request):
    """A request whose body has become a model already, which FastAPI takes as it is."""

    def __init__(self, scope: Scope, receive: Receive, raw: bytes, value: object) -> None:
        super().__init__(scope, receive)
        self._raw = raw
        self._value = value

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self._value


def _as_json(scope: Scope) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def check_size(body: bytes) -> None:
    """Refuse JSON text that would take too much memory as objects.

    Raises `ApiError` if it has more values, strings or containers than this module allows.
    """
    if _problem(body, body.count(b'"') // 2) is None:
        return
    # Marks within strings are text. Without escapes, every second piece between quotes is one.
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = unescaped.count(b'"') // 2
    outside = b"".join(unescaped.split(b'"')[::2]) if strings <= MAX_STRINGS else b""
    if problem := _problem(outside, strings):
        raise ApiError(400, problem, code="too_many_values")


def _problem(outside: bytes, strings: int) -> str | None:
    """Return the error of a body with this text outside of strings, and so many strings."""
    containers = outside.count(b"[") + outside.count(b"{")
    values = containers + outside.count(b",") + outside.count(b":")
    for count, maximum, what in (
        (containers, MAX_CONTAINERS, "lists and objects"),
        (strings, MAX_STRINGS, "strings"),
        (values, MAX_VALUES, "values"),
    ):
        if count > maximum:
            return f"The request body must have at most {maximum} {what}."
    return None


def parse_isolated(raw: bytes, annotation: Any) -> Any:
    """Return `parse`'s result, from another process."""
    header = {"annotation": b64encode(pickle.dumps(annotation)).decode()}
    try:
        _, result, _ = _PROCESS.request(header, raw, max_bytes=_MAX_RESULT_LEN)
    except ProcessLimitError as error:
        raise ApiError(400, f"{error}; send less.", code="too_many_values") from None
    kind, value = pickle.loads(result)  # our own process wrote it
    if kind == "value":
        return value
    fields, model = value
    rejection = ApiError(**fields)
    raise rejection if kind == "error" else RejectedBody(rejection, model)


def _handled(header: dict[str, Any], raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the value of a body, or what is wrong with it, for `parse_isolated`."""
    result: tuple[str, Any]
    try:
        result = "value", parse(raw, pickle.loads(b64decode(header["annotation"])))
    except ApiError as error:
        result = "error", (vars(error), None)
    except RejectedBody as error:
        result = "refused", (vars(error.reported), cast(Any, error.body)["model"])
    return {}, pickle.dumps(result, pickle.HIGHEST_PROTOCOL)


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def parse(raw: bytes, annotation: Any) -> Any:
    """Return the value of a body in the form of an annotation; raise `ApiError` or `RejectedBody` if there is none."""
    check_size(raw)
    try:
        body = _json(raw)
    except RecursionError:
        raise ApiError(400, "The request body is nested too deeply.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise ApiError(400, "The request body is not UTF-8.", code="invalid_json") from None
    except ValueError as error:
        reason = getattr(error, "msg", str(error))
        if any(sign in reason for sign in _NO_TEXT):
            raise ApiError(400, f"The request body holds what is no text: {reason}", code="invalid_json") from None
        found = {"type": "json_invalid", "loc": ("body",), "msg": "JSON decode error", "input": {}}
        raise RejectedBody(validation_error([found | {"ctx": {"error": reason}}])) from None
    try:
        return _adapter(annotation).validate_python(body)
    except ValidationError as error:
        errors = [one | {"loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        model = body.get("model") if isinstance(body, dict) else None
        raise RejectedBody(validation_error(errors), model) from None


def _json(raw: bytes) -> Any:
    """Return the value of JSON text, all of whose strings can be written in UTF-8."""
    if len(raw) > SHORT:  # faster and frugal
        return from_json(raw, cache_strings="keys")
    text = raw.decode("utf-8-sig")
    return from_json(text) if _SURROGATE.search(raw) else json.loads(text)


def _is_json(content_type: str) -> bool:
    message = Message()
    message["content-type"] = content_type or "none/none"
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))


if __name__ == "__main__":
    trim_heap()
    handle_requests(_SUBJECT, _handled)
