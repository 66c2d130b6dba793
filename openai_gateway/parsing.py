"""From the bytes of a request's body to its model, at a bounded cost, and beside the event loop when it is long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from functools import partial
from typing import Any, cast

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from openai_gateway.errors import ApiError

# What counts is not only how long a body is: `[],` is three bytes, and 64 as an object of Python's.
MAX_VALUES = 1_000_000  # keys among them; as many tokens as a prompt may have
MAX_STRINGS = 262_144  # keys among them
MAX_CONTAINERS = 32_768  # lists and objects; one that becomes a model takes a thousand bytes
_SHORT = 128 * 1024  # bytes that are parsed at once, in two milliseconds
_BESIDE = ThreadPoolExecutor(2, thread_name_prefix="parsing")  # more would be more memory, and no faster


class BoundedRoute(APIRoute):
    """A route whose body is parsed and validated before FastAPI would, within the bounds of this module."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        model: TypeAdapter[Any] = TypeAdapter(cast(Any, self.body_field.field_info.annotation))

        async def bounded(request: Request) -> Response:
            raw = await request.body()
            if not raw or not _is_json(request.headers.get("content-type", "")):
                return await handler(request)  # refuses it
            parse = partial(_parse, raw, model)
            long = len(raw) > _SHORT
            value = await asyncio.get_running_loop().run_in_executor(_BESIDE, parse) if long else parse()
            return await handler(_ParsedRequest(request, raw, value))

        return bounded


class _ParsedRequest(Request):
    """A request whose body has become a model already, which FastAPI takes as it is."""

    def __init__(self, request: Request, raw: bytes, value: object) -> None:
        super().__init__(request.scope, request.receive)
        self._raw = raw
        self._value = value

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> Any:
        return self._value


def check_size(body: bytes) -> None:
    """Refuse JSON text that would take too much memory as objects.

    Raises
    ------
    ApiError
        It has more values, strings or containers than this module allows.
    """
    if _problem(body, body.count(b'"') // 2) is None:
        return
    # Marks within strings are text. Without escapes, every second piece between quotes is one.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = plain.count(b'"') // 2
    outside = b"".join(plain.split(b'"')[::2]) if strings <= MAX_STRINGS else b""
    if problem := _problem(outside, strings):
        raise ApiError(400, problem, code="too_many_values")


def _problem(marks: bytes, strings: int) -> str | None:
    """Return what is wrong with a body of these marks, each of which stands before a value, and strings."""
    containers = marks.count(b"[") + marks.count(b"{")
    values = containers + marks.count(b",") + marks.count(b":")
    for count, most, what in (
        (containers, MAX_CONTAINERS, "lists and objects"),
        (strings, MAX_STRINGS, "strings"),
        (values, MAX_VALUES, "values"),
    ):
        if count > most:
            return f"The request body must have at most {most} {what}."
    return None


def _parse(raw: bytes, model: TypeAdapter[Any]) -> Any:
    check_size(raw)
    try:
        # The second is faster and frugal, and refuses halves of surrogate pairs; the first leaves them to the fields.
        body = json.loads(raw) if len(raw) <= _SHORT else from_json(raw, cache_strings="keys")
    except RecursionError:
        raise ApiError(400, "The request body is nested too deeply.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise ApiError(400, "The request body is not UTF-8.", code="invalid_json") from None
    except ValueError as error:
        told = {"type": "json_invalid", "loc": ("body",), "msg": "JSON decode error", "input": {}}
        raise RequestValidationError([told | {"ctx": {"error": getattr(error, "msg", str(error))}}]) from None
    try:
        return model.validate_python(body)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        told_errors = [one | {"loc": ("body", *one["loc"])} for one in errors]
        raise RequestValidationError(told_errors, body=body) from None


def _is_json(content_type: str) -> bool:
    message = Message()
    message["content-type"] = content_type or "none/none"
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
