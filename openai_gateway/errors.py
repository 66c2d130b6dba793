"""Error responses of each API: in OpenAI's form with LMDeploy's members, in Anthropic's and in Ollama's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import orjson
from fastapi import Response
from pydantic import BaseModel

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

BODY = "lmdeploy.body"
"""Member of a request's scope: its body, once it is a model."""

Api = Literal["openai", "anthropic", "ollama"]


def api_of(path: str) -> Api:
    """Return whose API a path belongs to: its clients read errors in that API's form."""
    if path.startswith(_ANTHROPIC_PATH):
        return "anthropic"
    return "ollama" if path.startswith(_OLLAMA_PATH) else "openai"


class ErrorDetail(BaseModel):
    """The inside of an error response."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """An error response: OpenAI's in ``error``, LMDeploy's in the other members, where the code is the HTTP status."""

    error: ErrorDetail
    object: Literal["error"] = "error"
    message: str
    type: str
    param: str | None
    code: int


class AnthropicErrorDetail(BaseModel):
    """The inside of an error response in the form of Anthropic's API."""

    type: str
    message: str


class AnthropicErrorResponse(BaseModel):
    """An error response in the form of Anthropic's API."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail


class OllamaErrorResponse(BaseModel):
    """An error response in the form of Ollama's API."""

    error: str


def failures(form: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return, for the OpenAPI document, the errors of routes whose clients read them in a form."""
    return {
        "4XX": {"model": form, "description": "The request was refused."},
        "5XX": {"model": form, "description": "The request failed."},
    }


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
        """Return the JSON text of the response."""
        error = {"message": self.message, "type": self._type, "param": self.param, "code": self.code}
        body: dict[str, Any] = {"error": error, "object": "error", **error, "code": self.status}
        if self.status == 401:
            body["detail"] = {"error": error}
        elif self.detail is not None:
            body["detail"] = self.detail
        return orjson.dumps(body)

    def response(self, path: str = "") -> Response:
        """Return the whole response to a request for a path: clients of other APIs read theirs in other forms."""
        forms = {"openai": self.body, "anthropic": self.anthropic_body, "ollama": self.ollama_body}
        return Response(forms[api_of(path)](), self.status, self.headers, "application/json")

    def anthropic_body(self) -> bytes:
        """Return the JSON text of the response as Anthropic's API words it."""
        usual = "api_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": _ANTHROPIC_TYPES.get(self.status, usual), "message": self.message}
        return orjson.dumps({"type": "error", "error": error})

    def ollama_body(self) -> bytes:
        """Return the JSON text of the response as Ollama's API words it."""
        return orjson.dumps({"error": self.message})

    @property
    def _type(self) -> str:
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"


def load_failure(model: str) -> ApiError:
    """Return the error of requests for a model that could not be loaded; the reason may name files, and is logged."""
    message = f"The model `{model}` could not be loaded; the server's log says why."
    return ApiError(503, message, code="service_unavailable")


def one_line(text: str, max_len: int = 200) -> str:
    """Return the beginning of a text with everything escaped that is no visible character, or could end a line."""
    shown = text[:max_len]
    escaped = "".join(char if char.isprintable() and char != "\\" else _escape(char) for char in shown)
    return escaped if len(text) <= max_len else escaped + "..."


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
