"""Every failure as OpenAI words it, ``{"error": {...}}``, and beside it as LMDeploy's clients expect it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from lmdeploy.serve.client import TritonRequestError, TritonUnavailable
from openai_gateway.cancellation import ClientDisconnected
from openai_gateway.protocol.fields import FieldError

logger = logging.getLogger(__name__)

_STATUS_OF_GRPC = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "UNAVAILABLE": 503}
_HEADERS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}
_SHOWN_INPUT = 60  # characters of a refused value


class ErrorDetail(BaseModel):
    """The inside of an error answer."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """An error answer: OpenAI's in ``error``, LMDeploy's in the other members, where the code is the HTTP status."""

    error: ErrorDetail
    object: Literal["error"] = "error"
    message: str
    type: str
    param: str | None
    code: int


class ApiError(Exception):
    """A failure with the HTTP status and the words its client gets."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or _HEADERS.get(status, {}))

    def body(self) -> bytes:
        """Return the JSON text of the answer."""
        error = {"message": self.message, "type": self._type, "param": self.param, "code": self.code}
        body: dict[str, Any] = {"error": error, "object": "error", **error, "code": self.status}
        if self.status == 401:
            body["detail"] = {"error": error}
        return orjson.dumps(body)

    def response(self) -> Response:
        """Return the whole answer."""
        return Response(self.body(), self.status, self.headers, "application/json")

    @property
    def _type(self) -> str:
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"


def as_api_error(error: Exception) -> ApiError:
    """Return what a client is told about `error`; an unexpected one is logged and keeps its details to itself."""
    match error:
        case ApiError():
            return error
        case TritonUnavailable():
            logger.warning("%s", error)
            return ApiError(503, "The model is not available now; try again later.", code="service_unavailable")
        case TritonRequestError(code=code, message=message):
            status = _STATUS_OF_GRPC.get(code, 500)
            if status == 500:
                logger.error("the engine failed a request: %s", error)
            return ApiError(status, message.partition("\n")[0])
        case RequestValidationError():
            return _validation_error(error.errors())
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
        case _:
            logger.error("unexpected error", exc_info=error)
            return ApiError(500, "The server had an error while processing your request.", code="internal_error")


def install_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every failure in OpenAI's form."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error = _no_such_route(request, error)
        return as_api_error(error).response()

    async def nobody_listens(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    handled = (ApiError, TritonUnavailable, TritonRequestError, RequestValidationError, HTTPException, Exception)
    for kind in handled:
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnected, nobody_listens)


def _no_such_route(request: Request, error: HTTPException) -> ApiError:
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return ApiError(404, f"Invalid URL ({asked})", code="unknown_url")
    return ApiError(405, f"Method not allowed ({asked})", code="method_not_allowed", headers=error.headers)


def _validation_error(errors: Sequence[Any]) -> ApiError:
    """Return one readable error out of pydantic's list, the most specific of the first field at fault."""
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"The request body is not valid JSON: {reason}", code="invalid_json")
    field = first["loc"][1:2]
    # A field that takes several forms reports one error a form; the deepest is of the form that was meant.
    error = max((one for one in errors if one["loc"][1:2] == field), key=lambda one: len(one["loc"]))
    param = _path(error["loc"][1:])
    if error["type"] == "value_error" and isinstance(refusal := error["ctx"]["error"], FieldError):
        param = ".".join(filter(None, (param, refusal.field)))
        message = param + str(refusal).removeprefix(refusal.field) if refusal.field else str(refusal)
        return ApiError(400, message, param=param, code="unsupported_value")
    if not param:
        return ApiError(400, "The request body must be a JSON object, sent as application/json.")
    if error["type"] == "missing":
        return ApiError(400, f"{param} is required", param=param, code="missing_required_parameter")
    _, is_short, expected = error["msg"].partition("Input should be ")
    reason = f"{param} must be {expected}" if is_short else f"{param}: {error['msg']}"
    return ApiError(400, f"{reason}, got {_shown(error['input'])}", param=param, code="invalid_value")


def _path(location: Sequence[str | int]) -> str:
    """Return ``messages[0].content`` for a pydantic location, without the names of union members."""
    path, tagged = "", False
    for part in location:
        if tagged and isinstance(part, str):  # which form of the field was meant
            tagged = False
            continue
        tagged = part == "response_format"
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part.islower() and part not in ("str", "int", "float", "bool", "none"):
            path += f".{part}" if path else part
    return path


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_INPUT else text[:_SHOWN_INPUT] + "..."
