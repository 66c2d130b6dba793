"""ASGI application of the chat page."""

from __future__ import annotations

import asyncio
import hmac
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from webui import uploads

# Read when gradio is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["GRADIO_TEMP_DIR"] = str(uploads.folder())

import gradio as gr
from fastapi import FastAPI
from starlette.routing import Mount
from starlette.types import ASGIApp

from openai_gateway.process.connection import DEFAULT_CLIENT_TIMEOUTS, ClientTimeouts
from openai_gateway.process.server import Listening, Server
from openai_gateway.settings import Settings
from webui.blocks import build
from webui.conversation_list import BROWSER
from webui.conversations import Conversation
from webui.gateway import PageGateway
from webui.guard.app import guarded
from webui.guard.sessions import Sessions
from webui.openai_client import OpenAIClient
from webui.page import Page
from webui.theme import CSS, theme

_POLL_SECONDS = {  # by what Gradio's queue calls it: of questions, and of progress bars, which the page has none of
    "sleep_when_free": 0.1,
    "progress_update_sleep_when_free": 1.0,
}
DEFAULTS = Settings()
LOGIN = "Any name will do; the password is an API key of this server."


def create_app(
    server: str,
    model_name: str | None = None,
    api_keys: Sequence[str] = (),  # the page is for those who know one of them; empty: for everybody
    api_key: str | None = None,
    settings: Settings = DEFAULTS,
) -> ASGIApp:
    """Return the page as an ASGI application that stops its running responses when it shuts down."""
    is_url = server.startswith(("http://", "https://"))
    gateway = None if is_url else PageGateway(replace(settings, triton_address=server))
    client = OpenAIClient(server, api_key) if gateway is None else OpenAIClient(gateway.url, gateway.key)
    blocks = build(client, model_name)
    page: Page = blocks.page

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if gateway is not None:
            gateway.start()
        yield
        await page.close()
        if gateway is not None:
            await asyncio.to_thread(gateway.stop)

    inner = FastAPI(lifespan=lifespan, openapi_url=None)
    gr.mount_gradio_app(
        inner,
        blocks,
        path="",
        theme=theme(),
        css=CSS,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        pwa=False,
        run_history=False,
        footer_links=[],
        show_error=False,
        max_file_size=uploads.MAX_FILE_BYTES,
        auth=_knows_one_of(api_keys) if api_keys else None,
        auth_message=LOGIN if api_keys else None,
    )
    blocks.has_launched = True  # else Gradio takes any file of the machine for one that was uploaded
    _poll_less_often(blocks)
    mount = inner.routes[-1]
    assert isinstance(mount, Mount)
    sessions = Sessions(partial(_kept, blocks), partial(_evict, blocks))
    return guarded(mount.app, blocks.fns, sessions, BROWSER, lambda _: inner.router.lifespan_context(inner))


def _kept(blocks: Any, session: str) -> int:
    """Return about how many bytes the conversation of a browser's session has."""
    state = blocks.state_holder.session_data.get(session)
    conversations = [value for value in state.state_data.values() if isinstance(value, Conversation)] if state else []
    return sum(conversation.length for conversation in conversations)


def _evict(blocks: Any, session: str) -> None:
    """Let nothing of a browser's session stay in memory."""
    blocks.page.leave(session)
    for kept in (blocks.state_holder.session_data, blocks.state_holder.time_last_used):
        kept.pop(session, None)
    queue = _queue_of(blocks)
    for waiting in (queue.pending_messages_per_session, queue.pending_event_ids_session):
        waiting.pop(session, None)


def _queue_of(blocks: Any) -> Any:
    """Return Gradio's queue, which has no public name; all else of Gradio that is used here has one."""
    return blocks._queue


def _poll_less_often(blocks: Any) -> None:
    """Let an idle page cost nothing: Gradio's queue looks for events, and for their progress, all the time.

    By itself it looks 1,000 and 100 times a second, which takes some percent of a processor.
    """
    queue = _queue_of(blocks)
    for name, seconds in _POLL_SECONDS.items():
        setattr(queue, name, max(getattr(queue, name), seconds))


def _knows_one_of(api_keys: Sequence[str]) -> Callable[[str, str], bool]:
    """Return the login check, whose passwords are API keys."""

    def is_let_in(_: str, password: str) -> bool:
        # Every key is compared, each in a time that does not depend on where it differs.
        matches = [hmac.compare_digest(password.encode(), key.encode()) for key in api_keys]
        return any(matches)

    return is_let_in


def launch(
    # ``host:port`` of Triton's gRPC service, or the URL of a server with OpenAI's API. It need not be up yet
    server: str,
    # Where to listen
    server_name: str,
    server_port: int,
    model_name: str | None = None,  # title of the page; ``None`` asks the server
    api_keys: Sequence[str] = (),
    api_key: str | None = None,
    settings: Settings = DEFAULTS,  # of the gateway for a Triton
) -> None:
    """Serve the page until the process is asked to stop; SIGINT then raises `KeyboardInterrupt`."""
    app = create_app(server, model_name, api_keys, api_key, settings)
    served = server_of(app, server_name, server_port)
    served.run()
    if not served.started:
        sys.exit(1)


def server_of(
    app: ASGIApp, server_name: str, server_port: int, timeouts: ClientTimeouts = DEFAULT_CLIENT_TIMEOUTS
) -> Server:
    """Return the page's server, with the gateway's deadlines for clients; port 0 takes a free one."""
    return Server(app, Listening(server_name, server_port, timeouts=timeouts), drain_seconds=3)
