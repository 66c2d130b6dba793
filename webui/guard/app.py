"""Allowlist of the page's Gradio routes, each behind checks of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import anyio
from anyio.to_thread import run_sync
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_gateway.middleware.body_limit import BodyLimit
from webui import uploads
from webui.guard.events import SESSION_NAME, EventRejected, checked
from webui.guard.headers import POLICY, Headers, policy
from webui.guard.keys import Keys
from webui.guard.sessions import Sessions, SessionsFull

MAX_EVENT_BYTES = 8 * 2**20  # as the gateway's default
MAX_FORM_BYTES = 64 * 2**20
MAX_LOGIN_BYTES = 16 * 1024
MAX_FILES = 16  # of a form
_ALL_EVENTS_BYTES, _ALL_FORMS_BYTES = 128 * 2**20, 512 * 2**20
_SHORT = 128 * 1024  # bytes that are checked at once, in two milliseconds
_API = "/gradio_api"
_PAGES = ("/config", "/theme.css", "/manifest.json", "/favicon.ico", f"{_API}/app_id")
_ASSETS, _STATIC = "/assets/{path:path}", "/static/{path:path}"
# Of assets, whose names have a hash of their content: browsers need not ask again whether one has changed.
_IMMUTABLE = "public, max-age=31536000, immutable"
# Of a request on its way to Gradio: what our own routing left there, and headers that do not fit a body written again.
_OURS = ("app", "router", "endpoint", "path_params", "route", "starlette.exception_handlers")
_LEFT_OUT = (b"content-length", b"content-encoding", b"transfer-encoding", b"origin")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def guarded(gradio_app: Any, functions: Any, sessions: Sessions, script: str, lifespan: Lifespan) -> ASGIApp:
    """Return the application that callers reach.

    ``gradio_app``: Gradio's application, which nothing else reaches. ``functions``: its events, by number. ``script``:
    JavaScript of the page. ``lifespan``: what starts and stops it.
    """
    guard = _Guard(gradio_app, functions, sessions, script)
    handlers: dict[Any, Any] = {HTTPException: _rejected, SessionsFull: _full, EventRejected: _rejected_event}
    app = Starlette(routes=guard.routes(), lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Headers(Keys(app, gradio_app))


class _Guard:
    def __init__(self, gradio_app: ASGIApp, functions: Any, sessions: Sessions, script: str) -> None:
        self._gradio = gradio_app
        self._functions = functions
        self._sessions = sessions
        self._script = script
        self._checks = anyio.CapacityLimiter(2)  # more would be more memory, and no faster

    def routes(self) -> list[Route]:
        """Return all routes of the page."""
        events = BodyLimit(request_response(self._event), MAX_EVENT_BYTES, _ALL_EVENTS_BYTES)
        forms = BodyLimit(request_response(self._upload), MAX_FORM_BYTES, _ALL_FORMS_BYTES)
        return [
            Route("/", self._page, methods=["GET"]),
            *(Route(path, self._read, methods=["GET"]) for path in (*_PAGES, _STATIC)),
            Route(_ASSETS, self._asset, methods=["GET"]),
            Route(
                "/login", BodyLimit(request_response(self._login), MAX_LOGIN_BYTES, _ALL_EVENTS_BYTES), methods=["POST"]
            ),
            Route(f"{_API}/run/predict", events, methods=["POST"]),
            Route(f"{_API}/queue/join", events, methods=["POST"]),
            Route(f"{_API}/queue/data", self._stream, methods=["GET"]),
            Route(f"{_API}/heartbeat/{{session}}", self._heartbeat, methods=["GET"]),
            Route(f"{_API}/upload", forms, methods=["POST"]),
            Route(f"{_API}/file={{path:path}}", self._file, methods=["GET"]),
        ]

    async def _page(self, request: Request) -> Response:
        """Return Gradio's page, of which every script has this response's nonce, and our own script."""
        status, html, nonce = 500, b"", secrets.token_urlsafe(16)

        async def read(message: Message) -> None:
            nonlocal status, html
            status, html = message.get("status", status), html + message.get("body", b"")

        await _FromGradio(self._gradio, is_uncompressed=True)(request.scope, request.receive, read)
        whole = html.decode().replace("</head>", f"<script>{self._script}</script></head>", 1)
        marked = whole.replace("<script", f'<script nonce="{nonce}"')
        return HTMLResponse(marked, status, {POLICY: policy(nonce)})

    async def _read(self, request: Request) -> Response:
        return _FromGradio(self._gradio)

    async def _asset(self, request: Request) -> Response:
        return _FromGradio(self._gradio, cache_control=_IMMUTABLE)

    async def _login(self, request: Request) -> Response:
        return _FromGradio(self._gradio, body=await request.body())

    async def _event(self, request: Request) -> Response:
        if _media_type(request) != "application/json":
            raise HTTPException(415, "An event is sent as application/json.")
        raw = await request.body()
        check = partial(checked, raw, self._functions, is_queued=request.url.path.endswith("/join"))
        event = check() if len(raw) <= _SHORT else await run_sync(check, limiter=self._checks)
        while_open = self._sessions.request(event.session, event.number, event.size)
        return _FromGradio(self._gradio, body=event.body, while_open=while_open)

    async def _stream(self, request: Request) -> Response:
        name = _session_name(request.query_params.get("session_hash", ""))
        if name not in self._sessions:
            raise HTTPException(404, "The page has no such session.")
        return _FromGradio(self._gradio, query=f"session_hash={name}".encode())

    async def _heartbeat(self, request: Request) -> Response:
        name = _session_name(request.path_params["session"])
        return _FromGradio(self._gradio, while_open=self._sessions.page(name))

    async def _upload(self, request: Request) -> Response:
        if _media_type(request) != "multipart/form-data":
            raise HTTPException(415, "Files are sent as multipart/form-data.")
        async with request.form(max_files=MAX_FILES, max_fields=MAX_FILES) as form:
            files = [file for file in form.getlist("files") if isinstance(file, UploadFile)]
            if not files:
                raise HTTPException(422, "The form has no files.")
            if any((file.size or 0) > uploads.MAX_FILE_BYTES for file in files):
                raise HTTPException(413, f"A file is longer than {uploads.MAX_FILE_BYTES} bytes.")
            try:
                saves = [partial(uploads.save, file.file, file.filename or "") for file in files]
                paths = [await run_sync(save, limiter=self._checks) for save in saves]
            except OSError:
                raise HTTPException(503, "There is no space for this file.") from None
        return JSONResponse([str(path) for path in paths])

    async def _file(self, request: Request) -> Response:
        found = uploads.find(request.path_params["path"])
        if found is None:
            raise HTTPException(404, "There is no such file.")
        return _FromGradio(self._gradio, path=f"{_API}/file={found}")


class _FromGradio(Response):
    """Response of Gradio to the request."""

    def __init__(
        self,
        gradio_app: ASGIApp,
        *,
        path: str | None = None,  # of what is asked; None: as the request has it
        query: bytes = b"",  # of the query: what Gradio is to read there
        body: bytes | None = None,  # in place of the request's
        while_open: AbstractContextManager[None] | None = None,  # entered while Gradio responds
        is_uncompressed: bool = False,  # whether its body must come as it is, not compressed
        cache_control: str = "",  # of the response if it is no error
    ) -> None:
        self._app = gradio_app
        self._path = path
        self._query = query
        self._given = body
        self._while_open = while_open or nullcontext()
        self._left_out = (*_LEFT_OUT, b"accept-encoding") if is_uncompressed else _LEFT_OUT
        self._cache_control = cache_control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = {name: value for name, value in scope.items() if name not in _OURS}
        inner["path"], inner["query_string"] = self._path or scope["path"], self._query
        inner["headers"] = [(name, value) for name, value in scope["headers"] if name not in self._left_out]
        bodies: list[Message] = []
        if self._given is not None:
            inner["headers"].append((b"content-length", str(len(self._given)).encode()))
            bodies.append({"type": "http.request", "body": self._given, "more_body": False})

        async def received() -> Message:
            return bodies.pop() if bodies else await receive()

        async def sent(message: Message) -> None:
            if self._cache_control and message.get("status", 400) < 400:
                MutableHeaders(scope=message)["cache-control"] = self._cache_control
            await send(message)

        with self._while_open:
            await self._app(inner, received, sent)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _session_name(given: str) -> str:
    try:
        return SESSION_NAME.validate_python(given)
    except ValidationError:
        raise HTTPException(404, "The page has no such session.") from None


def _error(status: int, message: str, headers: Any = None) -> Response:
    return JSONResponse({"error": message, "detail": message}, status, headers)  # Gradio's page reads either


async def _rejected(_: Request, error: HTTPException) -> Response:
    return _error(error.status_code, error.detail, error.headers)


async def _rejected_event(_: Request, error: EventRejected) -> Response:
    return _error(422, str(error))


async def _full(_: Request, error: SessionsFull) -> Response:
    return _error(503, "The page has too many conversations open; try again later.", {"retry-after": "1"})
