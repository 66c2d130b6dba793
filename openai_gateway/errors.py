"""Every failure as OpenAI words it, ``{"error": {...}}``, and beside it as LMDeploy's clients expect it."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from lmdeploy.serve.client import TritonRequestError, TritonUnavailable
from openai_gateway.answering.cancellation import ClientDisconnected
from openai_gateway.escaping import one_line
from openai_gateway.protocol.fields import FieldError

logger = logging.getLogger(__name__)

_STATUS_OF_GRPC = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "ABORTED": 409, "UNAVAILABLE": 503}
_MISTYPED, _BAD_VALUE = 422, 400  # LMDeploy tells wrong types from wrong values
_HEADERS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}
_ANTHROPIC_PATH = "/v1/messages"
_OLLAMA_PATH = "/api/"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_SHOWN_INPUT = 60  # characters of a refused value
_LOGGED = 1000  # characters of what the engine says
# What OpenAI has and models that write text cannot do: the beginning of its path, and what to say.
_NOT_HERE = {
    "/v1/audio": ": the models served here neither hear nor speak",
    "/v1/images": ": the models served here make no pictures; they see those in messages",
    "/v1/responses/": ": responses are not stored; send the whole conversation again",
    "/v1/conversations": ": conversations are not stored; send them as input",
    "/v1/videos": ": the models served here make no videos; they see those in messages",
}
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_SHOWN_PATH = 200  # characters of where it stands

# What LMDeploy checks, in its order and in its words, for values out of range: field -> pydantic's names of what is
# wrong, and the words.
_RANGES = {
    "n": (("greater_than_equal",), "The n `{}` must be a positive int."),
    "top_p": (("greater_than", "less_than_equal"), "The top_p `{}` must be in (0, 1]."),
    "top_k": (("greater_than_equal",), "The top_k `{}` cannot be a negative integer."),
    "temperature": (("greater_than_equal", "less_than_equal"), "The temperature `{}` must be in [0, 2]"),
}
_CHECKED_FIRST = list(_RANGES)


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


class AnthropicErrorDetail(BaseModel):
    """The inside of an error answer in the form of Anthropic's API."""

    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """An error answer in the form of Anthropic's API."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail


class OllamaErrorResponse(BaseModel):
    """An error answer in the form of Ollama's API."""

    error: str


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
        detail: object = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or _HEADERS.get(status, {}))
        self.detail = detail

    def body(self) -> bytes:
        """Return the JSON text of the answer."""
        error = {"message": self.message, "type": self._type, "param": self.param, "code": self.code}
        body: dict[str, Any] = {"error": error, "object": "error", **error, "code": self.status}
        if self.status == 401:
            body["detail"] = {"error": error}
        elif self.detail is not None:
            body["detail"] = self.detail
        return orjson.dumps(body)

    def response(self, path: str = "") -> Response:
        """Return the whole answer to a request for a path: clients of other APIs read theirs in other forms."""
        of_path = {_ANTHROPIC_PATH: self.anthropic_body, _OLLAMA_PATH: self.ollama_body}
        body = next((form for start, form in of_path.items() if path.startswith(start)), self.body)()
        return Response(body, self.status, self.headers, "application/json")

    def anthropic_body(self) -> bytes:
        """Return the JSON text of the answer as Anthropic's API words it."""
        usual = "api_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": _ANTHROPIC_TYPES.get(self.status, usual), "message": self.message}
        return orjson.dumps({"type": "error", "error": error})

    def ollama_body(self) -> bytes:
        """Return the JSON text of the answer as Ollama's API words it."""
        return orjson.dumps({"error": self.message})

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
            logger.warning("%s", one_line(str(error), _LOGGED))
            return ApiError(503, "The model is not available now; try again later.", code="service_unavailable")
        case TritonRequestError(code=code, message=message):
            status = _STATUS_OF_GRPC.get(code, 500)
            if status == 500:
                logger.error("the engine failed a request: %s", one_line(str(error), _LOGGED))
            return ApiError(status, message.partition("\n")[0])
        case RequestValidationError():
            return _validation_error(error.errors())
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
        case _:
            logger.error("unexpected error", exc_info=error)
            return ApiError(500, "The server had an error while processing your request.", code="internal_error")


def install_error_handlers(
    app: FastAPI, check_first: Callable[[Request, RequestValidationError], Awaitable[None]] | None = None
) -> None:
    """Make `app` answer every failure in OpenAI's form.

    Parameters
    ----------
    app : FastAPI
        The application.
    check_first : callable, optional
        Called when a value of a request is refused whose fields have the right types; what it raises is told instead.
    """

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error = _no_such_route(request, error)
        told = as_api_error(error)
        if check_first is not None and isinstance(error, RequestValidationError) and told.status == _BAD_VALUE:
            try:
                await check_first(request, error)
            except Exception as earlier:
                told = as_api_error(earlier)
        return told.response(request.url.path)

    async def nobody_listens(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    handled = (ApiError, TritonUnavailable, TritonRequestError, RequestValidationError, HTTPException, Exception)
    for kind in handled:
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnected, nobody_listens)


def _no_such_route(request: Request, error: HTTPException) -> ApiError:
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        why = next((why for start, why in _NOT_HERE.items() if request.url.path.startswith(start)), "")
        return ApiError(404, f"Invalid URL ({asked}){why}", code="unknown_url", detail=error.detail)
    message = f"Method not allowed ({asked})"
    headers = {"allow": ", ".join(_allowed_methods(request))}
    return ApiError(405, message, code="method_not_allowed", headers=headers, detail=error.detail)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods that a path takes, from whichever routes: the first one of a path knows its own alone."""
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    routes = request.app.routes
    return [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]


def _validation_error(errors: Sequence[Any]) -> ApiError:
    """Return one readable error out of pydantic's list: of the field that is checked first, the most specific one."""
    by_field: dict[object, Any] = {}
    for error in errors:
        field = error["loc"][1:2]
        if field not in by_field or _aptness(error) > _aptness(by_field[field]):
            by_field[field] = error
    error = min(by_field.values(), key=_rank)
    told = _one_error(error)
    if told.status == _MISTYPED:
        told.detail = [{key: error[key] for key in ("type", "loc", "msg")} | {"input": _shown(error["input"])}]
    return told


def _aptness(error: Any) -> tuple[int, bool]:
    """Rate an error of a field that takes several forms, each with its errors: the deepest is of the form meant."""
    return len(error["loc"]), not _is_mistyped(error)


def _rank(error: Any) -> tuple[bool, int]:
    """Return where an error stands in LMDeploy's order: types, then what it checks itself, then the rest."""
    field = error["loc"][1] if len(error["loc"]) > 1 else None
    checked = _CHECKED_FIRST.index(field) if field in _CHECKED_FIRST else len(_CHECKED_FIRST)
    return not _is_mistyped(error), checked


def _is_mistyped(error: Any) -> bool:
    kind: str = error["type"]
    return kind in ("json_invalid", "missing") or kind.endswith(("_type", "_parsing"))


def _one_error(error: Any) -> ApiError:
    status = _MISTYPED if _is_mistyped(error) else _BAD_VALUE
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", "")
        return ApiError(status, f"The request body is not valid JSON: {reason}", code="invalid_json")
    param = _path(error["loc"][1:])
    if error["type"] == "value_error" and isinstance(refusal := error["ctx"]["error"], FieldError):
        param = ".".join(filter(None, (param, refusal.field)))
        message, begins = str(refusal), refusal.field
        if begins and message.startswith(begins):
            message = param + message.removeprefix(begins)
        return ApiError(status, message, param=param, code="unsupported_value")
    if not param:
        return ApiError(status, "The request body must be a JSON object, sent as application/json.")
    if error["type"] == "missing":
        return ApiError(status, f"{param} is required", param=param, code="missing_required_parameter")
    kinds, words = _RANGES.get(param, ((), ""))
    if error["type"] in kinds:
        return ApiError(status, words.format(error["input"]), param=param, code="invalid_value")
    _, is_short, expected = error["msg"].partition("Input should be ")
    reason = f"{param} must be {expected}" if is_short else f"{param}: {error['msg']}"
    return ApiError(status, f"{reason}, got {_shown(error['input'])}", param=param, code="invalid_value")


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
    return path[:_SHOWN_PATH]


def _shown(value: object) -> str:
    text = _REPR.repr(value[: 2 * _SHOWN_INPUT]) if isinstance(value, str) else _REPR.repr(value)
    return text if len(text) <= _SHOWN_INPUT else text[:_SHOWN_INPUT] + "..."


def _brief_repr() -> reprlib.Repr:
    """Return what shows the beginning of a value; the whole of a long one would cost more than its parsing."""
    brief = reprlib.Repr()
    brief.maxlist = brief.maxdict = _SHOWN_INPUT // 2
    brief.maxstring = brief.maxlong = brief.maxother = 2 * _SHOWN_INPUT
    return brief


_REPR = _brief_repr()
