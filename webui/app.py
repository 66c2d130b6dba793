"""The chat page: its parts, and what happens when they are used.

The conversation is kept by Gradio a browser session at a time (``gr.State``), so every browser tab has its own.
"""

import hmac
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

# Read when gradio is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
import uvicorn
from fastapi import FastAPI

from webui.conversation import Outcome, Settings, Turn
from webui.openai_client import OpenAIClient
from webui.page import Page, chat_view, header_html
from webui.theme import CSS, theme
from webui.triton import TritonServer

STATUS_SECONDS = 3.0
_LOOK_SECONDS = 0.05
PLACEHOLDER = "### Ask anything"
_LONGEST_PASTED_TEXT = 1 << 24  # longer ones become files, which only pictures may be
LOGIN = "Any name will do; the password is an API key of this server."


def build(server: str, model_name: str | None = None, api_key: str | None = None, control_key: str = "") -> Any:
    """Build the page.

    Parameters
    ----------
    server
        ``host:port`` of Triton's gRPC service, or the URL of a server with OpenAI's API.
    model_name
        Title of the page; ``None`` asks the server.
    api_key
        A key of the server with OpenAI's API.
    control_key
        What Triton tells its adapters for.

    Returns
    -------
    gradio.Blocks
    """
    is_url = server.startswith(("http://", "https://"))
    page = Page(OpenAIClient(server, api_key) if is_url else TritonServer(server, control_key=control_key), model_name)

    with gr.Blocks(title=f"{model_name or 'Chat'} · LMDeploy", analytics_enabled=False, fill_width=True) as blocks:
        turns = gr.State([])
        offered = gr.State([])  # the model, and its adapters
        header = gr.HTML(header_html(model_name or "Chat", "waiting", "connecting"), elem_id="header")
        with gr.Row(equal_height=False):
            with gr.Column(scale=4, min_width=360):
                chat = gr.Chatbot(
                    elem_id="chat",
                    show_label=False,
                    height="max(320px, calc(100vh - 215px))",
                    buttons=["copy"],
                    placeholder=PLACEHOLDER,
                    feedback_options=None,
                )
                with gr.Row(equal_height=True):
                    question = gr.MultimodalTextbox(
                        elem_id="question",
                        placeholder="Message the model; paste or drop pictures",
                        show_label=False,
                        lines=1,
                        max_lines=8,
                        autofocus=True,
                        file_types=["image"],
                        file_count="multiple",
                        submit_btn=False,
                        max_plain_text_length=_LONGEST_PASTED_TEXT,
                        scale=8,
                    )
                    send = gr.Button("Send", elem_id="send", variant="primary", scale=1)
                    stop = gr.Button("Stop", elem_id="stop", variant="stop", scale=1, visible=False)
            with gr.Column(scale=1, min_width=250, elem_id="settings"):
                model = gr.Dropdown([], label="Model", elem_id="model", visible=False)
                system = gr.Textbox(
                    label="System prompt",
                    elem_id="system",
                    lines=3,
                    max_lines=8,
                    placeholder="The model's own",
                )
                temperature = gr.Slider(0.0, 2.0, value=0.7, step=0.05, label="Temperature", elem_id="temperature")
                top_p = gr.Slider(0.05, 1.0, value=0.95, step=0.05, label="Top-p")
                max_new_tokens = gr.Slider(1, 2048, value=512, step=1, label="Max new tokens", elem_id="max-tokens")
                with gr.Row():
                    retry = gr.Button("Retry", elem_id="retry", size="sm", interactive=False, min_width=80)
                    clear = gr.Button("Clear", elem_id="clear", size="sm", min_width=80)

        controls = [offered, model, system, temperature, top_p, max_new_tokens]
        # What changes while an answer runs: send, stop, retry, clear.
        buttons = [send, stop, retry, clear]

        def button_states(running: bool, has_turns: bool) -> list[Any]:
            idle = not running
            return [
                gr.update(visible=idle),
                gr.update(visible=running),
                gr.update(interactive=idle and has_turns),
                gr.update(interactive=idle),
            ]

        def ask(asked: dict[str, Any], said: list[Turn], request: gr.Request) -> list[Any]:
            text = asked["text"].strip()
            if not text or page.is_answering(request.session_hash):
                return [gr.skip()] * (2 + len(buttons))
            turn = Turn(text, pictures=tuple(asked["files"]))
            return [None, [*said, turn], *button_states(True, True)]

        def ask_again(said: list[Turn]) -> list[Any]:
            return [[*said[:-1], Turn(said[-1].question, pictures=said[-1].pictures)], *button_states(True, True)]

        async def answer(
            said: list[Turn],
            names: list[str],
            chosen: str | None,
            system_text: str,
            heat: float,
            nucleus: float,
            most: float,
            request: gr.Request,
        ) -> AsyncIterator[list[Any]]:
            session = request.session_hash or ""
            if not said or said[-1].outcome is not Outcome.RUNNING or page.is_answering(session):
                return
            settings = Settings(system_text, heat, nucleus, int(most), chosen if chosen in names[1:] else None)
            async for shown in page.answer(said, settings, session):
                yield [shown, gr.skip(), *[gr.skip()] * len(buttons)]
            yield [chat_view(said), said, *button_states(False, True)]

        async def look(names: list[str], chosen: str | None) -> list[Any]:
            header_now, names_now = await page.header(), await page.models()
            if not names_now or names_now == names:
                return [header_now, gr.skip(), gr.skip()]
            kept = chosen if chosen in names_now else names_now[0]
            return [header_now, names_now, gr.update(choices=names_now, value=kept, visible=len(names_now) > 1)]

        def clear_all() -> list[Any]:
            return [[], [], *button_states(False, False)]

        def stop_answer(request: gr.Request) -> None:
            page.stop(request.session_hash)

        answering: dict[str, Any] = {
            "fn": answer,
            "inputs": [turns, *controls],
            "outputs": [chat, turns, *buttons],
            "concurrency_limit": None,
            "show_progress": "hidden",
        }
        at_once: dict[str, Any] = {"queue": False, "show_progress": "hidden"}
        asking = gr.on(
            [question.submit, send.click],
            ask,
            [question, turns],
            [question, turns, *buttons],
            **at_once,
        )
        asking.then(**answering)
        retry.click(ask_again, [turns], [turns, *buttons], **at_once).then(**answering)
        stop.click(stop_answer, **at_once)
        clear.click(clear_all, None, [chat, turns, *buttons], **at_once)
        blocks.unload(stop_answer)
        looking: dict[str, Any] = {"fn": look, "inputs": [offered, model], "outputs": [header, offered, model]}
        blocks.load(**looking, **at_once)
        gr.Timer(STATUS_SECONDS).tick(**looking, **at_once)
    blocks.page = page
    return blocks


def create_app(
    server: str,
    model_name: str | None = None,
    api_keys: Sequence[str] = (),
    api_key: str | None = None,
    control_key: str = "",
) -> FastAPI:
    """Return the page as an ASGI application that stops its running answers when it shuts down.

    Parameters
    ----------
    server, model_name, api_key, control_key
        Of `build`.
    api_keys
        The page is for those who know one of them; empty: for everybody.
    """
    blocks = build(server, model_name, api_key, control_key)
    page: Page = blocks.page

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for session in list(page.running):
            page.stop(session)
        await page.client.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        blocks,
        path="",
        theme=theme(),
        css=CSS,
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

    It looks so often on Windows; elsewhere 1,000 and 100 times a second, which takes some percent of a processor.
    """
    queue = blocks._queue
    for name in ("sleep_when_free", "progress_update_sleep_when_free"):
        setattr(queue, name, max(getattr(queue, name), _LOOK_SECONDS))


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
    api_key, control_key
        Of `build`.
    """
    app = create_app(server, model_name, api_keys, api_key, control_key)
    uvicorn.run(app, host=server_name, port=server_port, log_level="warning", timeout_graceful_shutdown=3)
