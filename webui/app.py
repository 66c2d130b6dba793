"""The chat page as an application."""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

# Read when gradio is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
import uvicorn
from fastapi import FastAPI

from lmdeploy.serve.quiet_server import QuietServer
from webui.blocks import build
from webui.conversation_list import BROWSER
from webui.page import Page
from webui.theme import CSS, theme

_LOOK_SECONDS = {  # by what Gradio's queue calls it: of questions, and of progress bars, which the page has none of
    "sleep_when_free": 0.1,
    "progress_update_sleep_when_free": 1.0,
}
LOGIN = "Any name will do; the password is an API key of this server."


def create_app(
    server: str,
    model_name: str | None = None,
    api_keys: Sequence[str] = (),
    api_key: str | None = None,
    control_key: str = "",
    figures_url: str = "",
) -> FastAPI:
    """Return the page as an ASGI application that stops its running answers when it shuts down.

    Parameters
    ----------
    server, model_name, api_key, control_key, figures_url
        Of `build`.
    api_keys
        The page is for those who know one of them; empty: for everybody.
    """
    blocks = build(server, model_name, api_key, control_key, figures_url)
    page: Page = blocks.page

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for session in list(page.running):
            page.stop(session)
        await page.server.close()
        await page.watch.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        blocks,
        path="",
        theme=theme(),
        css=CSS,
        head=BROWSER,
        ssr_mode=False,
        footer_links=[],
        show_error=True,
        auth=_knows_one_of(api_keys) if api_keys else None,
        auth_message=LOGIN if api_keys else None,
    )
    _look_less_often(blocks)
    return mounted


def _look_less_often(blocks: Any) -> None:
    """Let an idle page cost nothing: Gradio's queue looks for events, and for their progress, all the time.

    By itself it looks 1,000 and 100 times a second, which takes some percent of a processor.
    """
    queue = blocks._queue
    for name, seconds in _LOOK_SECONDS.items():
        setattr(queue, name, max(getattr(queue, name), seconds))


def _knows_one_of(api_keys: Sequence[str]) -> Callable[[str, str], bool]:
    """Return what lets a user in, whose password is a key."""

    def is_let_in(_: str, password: str) -> bool:
        # Every key is compared, each in a time that does not depend on where it differs.
        matches = [hmac.compare_digest(password.encode(), key.encode()) for key in api_keys]
        return any(matches)

    return is_let_in


def launch(
    server: str,
    server_name: str,
    server_port: int,
    model_name: str | None = None,
    api_keys: Sequence[str] = (),
    api_key: str | None = None,
    control_key: str = "",
    figures_url: str = "",
) -> None:
    """Serve the page until the process is told to stop.

    Parameters
    ----------
    server
        ``host:port`` of Triton's gRPC service, or the URL of a server with OpenAI's API. It need not be up yet.
    server_name, server_port
        Where to listen.
    model_name
        Title of the page; ``None`` asks the server.
    api_keys
        Of `create_app`.
    api_key, control_key, figures_url
        Of `build`.
    """
    app = create_app(server, model_name, api_keys, api_key, control_key, figures_url)
    config = uvicorn.Config(app, host=server_name, port=server_port, log_level="warning", timeout_graceful_shutdown=3)
    served = QuietServer(config)
    with suppress(KeyboardInterrupt):
        served.run()
    if not served.started:
        sys.exit(1)
