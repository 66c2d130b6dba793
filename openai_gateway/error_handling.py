"""Exception handlers, from any exception to the error that the client reads."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from lmdeploy.serve.client import TritonRequestError, TritonUnavailable
from lmdeploy.serve.errors import ContextExceeded
from lmdeploy.serve.request import FIELDS
from openai_gateway.context_errors import context_error
from openai_gateway.errors import BODY, ApiError, load_failure, one_line
from openai_gateway.generation.cancellation import ClientDisconnected
from openai_gateway.parsing import RejectedBody
from openai_gateway.registry import OF_PATH
from openai_gateway.validation_errors import MISTYPED, validation_error

logger = logging.getLogger(__name__)

_STATUS_OF_GRPC = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "ABORTED": 409, "UNAVAILABLE": 503}
# LMDeploy's clients distinguish wrong types (422) from wrong values (400) here; on all other paths both are 400.
_BUSY = "has a running request"  # the engine, of a session whose client may just have left
_NOT_WOKEN = " could not be woken: "  # the engine, of a model that slept
_OF_NODES = "/nodes/"  # of the proxy
_FIELD = re.compile(r"[a-z]+(_[a-z]+)+")
_LOGGED = 1000  # characters of what the engine says
# OpenAI's services that models of text cannot offer: the beginning of the path, and the error.
_NOT_HERE = {
    "/v1/audio": ": the models served here neither hear nor speak",
    "/v1/images": ": the models served here make no images; they see those in messages",
    "/v1/conversations": ": conversations are not stored; send them as input",
    "/v1/videos": ": the models served here make no videos; they see those in messages",
}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def as_api_error(error: Exception, path: str = "", body: object = None) -> ApiError:
    """Return the response for `error`; an unexpected one is logged and keeps its details to itself.

    ``path``: of the request: a context that is exceeded is worded as programs expect it of each API. ``body``: of the
    request, once it is a model: its `limit_field` is what it calls the limit of its tokens.
    """
    match error:
        case ApiError():
            return error
        case ContextExceeded():
            return context_error(error, path, getattr(body, "limit_field", "max_tokens"))
        case TritonUnavailable():
            text = one_line(str(error), _LOGGED)
            logger.warning("%s", text)
            before, _, reason = text.partition(_NOT_WOKEN)
            if reason:
                return load_failure(before.rpartition(": ")[2])
            return ApiError(503, "The model is not available now; try again later.", code="service_unavailable")
        case TritonRequestError(message=message) if _BUSY in message:
            return ApiError(409, message.partition("\n")[0], code="session_busy", headers={"retry-after": "1"})
        case TritonRequestError(code=code, message=message):
            status = _STATUS_OF_GRPC.get(code, 500)
            if status == 500:
                logger.error("the engine failed a request: %s", one_line(str(error), _LOGGED))
            return _in_words_of(message.partition("\n")[0], status, path, body)
        case RejectedBody():
            return error.reported
        case RequestValidationError():
            return validation_error(error.errors())
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
        case _:
            logger.error("unexpected error", exc_info=error)
            return ApiError(500, "The server had an error while processing your request.", code="internal_error")


def _in_words_of(message: str, status: int, path: str, body: object) -> ApiError:
    """Return an error of the engine with its fields under the names that a request has them by."""
    endpoint, given = OF_PATH.get(path), getattr(body, "model_fields_set", ())
    names = {name: next((other for other in info.also if other in given), name) for name, info in FIELDS.items()}
    names["max_new_tokens"] = getattr(body, "limit_field", "max_tokens")
    names["response_format"] = getattr(body, "grammar_field", "response_format")
    names |= dict.fromkeys(("input_ids", "text_input"), "input" if endpoint is None else endpoint.prompt)
    field = re.split(" must |: ", message, maxsplit=1)[0].rpartition(" ")[2]
    message = _FIELD.sub(lambda found: names.get(found[0], found[0]), message)
    return ApiError(status, message, param=names.get(field))


def install_error_handlers(
    app: FastAPI, check_first: Callable[[Request, RequestValidationError], Awaitable[None]] | None = None
) -> None:
    """Make `app` answer every failure in OpenAI's form.

    ``check_first``: called when a value of a request is refused whose fields have the right types; its error is
    reported instead.
    """

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error = _no_such_route(request, error)
        path: str = request.scope["path"]
        api_error = as_api_error(error, path, request.scope.get(BODY))
        if check_first is not None and isinstance(error, RequestValidationError) and api_error.status != MISTYPED:
            try:
                await check_first(request, error)
            except Exception as earlier:
                api_error = as_api_error(earlier)
        if api_error.status == MISTYPED and not _distinguishes_types(path):
            api_error.status = 400
        return api_error.response(path)

    async def nobody_listens(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    handled = (ApiError, TritonUnavailable, TritonRequestError, RequestValidationError, HTTPException, Exception)
    for kind in handled:
        app.add_exception_handler(kind, respond)
    app.add_exception_handler(ClientDisconnected, nobody_listens)
    app.add_exception_handler(ClientDisconnect, nobody_listens)  # in the middle of its request


def _distinguishes_types(path: str) -> bool:
    endpoint = OF_PATH.get(path)
    return path.startswith(_OF_NODES) or (endpoint is not None and endpoint.distinguishes_types)


def _no_such_route(request: Request, error: HTTPException) -> ApiError:
    path: str = request.scope["path"]
    route = f"{request.method} {path}"
    if error.status_code == 404:
        why = next((why for start, why in _NOT_HERE.items() if path.startswith(start)), "")
        return ApiError(404, f"Invalid URL ({route}){why}", code="unknown_url", detail=error.detail)
    message = f"Method not allowed ({route})"
    headers = {"allow": ", ".join(_allowed_methods(request))}
    return ApiError(405, message, code="method_not_allowed", headers=headers, detail=error.detail)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods that a path takes, from whichever routes: the first one of a path knows its own alone."""
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    routes = request.app.routes
    allowed = [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]
    return [*allowed, "HEAD"] if "GET" in allowed else allowed
