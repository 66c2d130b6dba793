"""The chat page: its parts, and what happens when they are used.

The conversation is kept by Gradio a browser session at a time (``gr.State``), so every browser tab has its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from webui.conversation import Outcome, Turn
from webui.openai_client import OpenAIClient
from webui.page import Page
from webui.settings_panel import settings_from, settings_panel
from webui.triton import TritonServer
from webui.view import chat_view, header_html, turn_at

STATUS_SECONDS = 3.0
PLACEHOLDER = (
    "### Ask anything\nEnter sends, Shift+Enter begins a line, Escape stops. Pictures may be pasted or dropped."
)
_LONGEST_PASTED_TEXT = 1 << 24  # longer ones become files, which only pictures may be
# Whichever way a model marks formulas.
_LATEX = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
    {"left": "$", "right": "$", "display": False},
]


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
        with gr.Row(elem_id="head", equal_height=True):
            header = gr.HTML(header_html(model_name or "Chat", "waiting", "connecting"), elem_id="header")
            model = gr.Dropdown(
                [], elem_id="model", visible=False, show_label=False, container=False, min_width=160, scale=0
            )
            clear = gr.Button("New chat", elem_id="clear", size="sm", min_width=96, scale=0)
        chat = gr.Chatbot(
            elem_id="chat",
            show_label=False,
            height="100%",
            buttons=["copy"],
            placeholder=PLACEHOLDER,
            feedback_options=None,
            latex_delimiters=_LATEX,
            layout="bubble",
        )
        question = gr.MultimodalTextbox(
            elem_id="question",
            placeholder="Message the model",
            show_label=False,
            lines=1,
            max_lines=8,
            autofocus=True,
            file_types=["image"],
            file_count="multiple",
            max_plain_text_length=_LONGEST_PASTED_TEXT,
        )
        with gr.Sidebar(position="right", open=False, width=330, elem_id="settings"):
            panel = settings_panel(model)

        controls = [offered, *panel.inputs]

        def question_while(is_running: bool, **further: Any) -> Any:
            return gr.update(submit_btn=not is_running, stop_btn=is_running, **further)

        def ask(asked: dict[str, Any], said: list[Turn], request: gr.Request) -> list[Any]:
            text = asked["text"].strip()
            if not text or page.is_answering(request.session_hash):
                return [gr.skip(), gr.skip()]
            return [question_while(True, value=None), [*said, Turn(text, pictures=tuple(asked["files"]))]]

        def ask_again(said: list[Turn], request: gr.Request, data: gr.RetryData) -> list[Any]:
            if page.is_answering(request.session_hash):
                return [gr.skip(), gr.skip()]
            kept = said[: turn_at(said, data.index) + 1]
            kept[-1].ask_again()
            return [question_while(True), kept]

        async def answer(said: list[Turn], names: list[str], request: gr.Request, *values: Any) -> AsyncIterator[Any]:
            session = request.session_hash or ""
            if not said or said[-1].answer.outcome is not Outcome.RUNNING or page.is_answering(session):
                return
            settings = settings_from(values)
            async for shown in page.answer(said, settings, session):
                yield [shown, gr.skip(), gr.skip()]
            yield [chat_view(said), said, question_while(False)]

        async def look(names: list[str], chosen: str | None) -> list[Any]:
            header_now, names_now = await page.header()
            if not names_now or names_now == names:
                return [header_now, gr.skip(), gr.skip()]
            kept = chosen if chosen in names_now else names_now[0]
            return [header_now, names_now, gr.update(choices=names_now, value=kept, visible=len(names_now) > 1)]

        def clear_all(request: gr.Request) -> list[Any]:
            page.stop(request.session_hash)
            return [[], [], question_while(False, value=None)]

        def stop_answer(request: gr.Request) -> None:
            page.stop(request.session_hash)

        answering: dict[str, Any] = {
            "fn": answer,
            "inputs": [turns, *controls],
            "outputs": [chat, turns, question],
            "concurrency_limit": None,
            "show_progress": "hidden",
        }
        at_once: dict[str, Any] = {"queue": False, "show_progress": "hidden"}
        question.submit(ask, [question, turns], [question, turns], **at_once).then(**answering)
        chat.retry(ask_again, [turns], [question, turns], **at_once).then(**answering)
        question.stop(stop_answer, **at_once)
        clear.click(clear_all, None, [chat, turns, question], **at_once)
        blocks.unload(stop_answer)
        looking: dict[str, Any] = {"fn": look, "inputs": [offered, model], "outputs": [header, offered, model]}
        blocks.load(**looking, **at_once)
        gr.Timer(STATUS_SECONDS).tick(**looking, **at_once)
    blocks.page = page
    return blocks
