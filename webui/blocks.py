"""Chat page: its components and their event handlers."""

from __future__ import annotations

from typing import Any

import gradio as gr

from webui.conversation_list import CHOSEN, CURRENT, LEAVE, STEP, conversation_list, newer
from webui.conversations import Conversation
from webui.handlers import Handlers
from webui.markdown import LATEX
from webui.openai_client import OpenAIClient
from webui.page import Page
from webui.presets import DEFAULT, values_of
from webui.settings_panel import AT_ONCE, settings_panel
from webui.view import header_html

STATUS_SECONDS = 3.0
PLACEHOLDER = "### Ask anything\nEnter sends, Shift+Enter starts a new line, Escape stops. Paste or drop images."
_MAX_PASTED_LEN = 1 << 22  # longer ones become files, which only images may be


def build(
    served: OpenAIClient,
    model_name: str | None = None,  # title of the page; ``None`` asks the server
) -> Any:
    """Build the page."""
    page = Page(served, model_name)

    with gr.Blocks(title=f"{model_name or 'Chat'} · LMDeploy", analytics_enabled=False, fill_width=True) as blocks:
        conversation = gr.State(None)  # a Conversation, as soon as there is one
        offered = gr.State([])  # the model, and its adapters
        with gr.Sidebar(position="left", open=False, width=270, elem_id="conversations"):
            kept = conversation_list()
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
            autoscroll=False,  # browser.js scrolls, and leaves alone who reads further up
            buttons=["copy"],
            editable="user",
            placeholder=PLACEHOLDER,
            feedback_options=None,
            latex_delimiters=LATEX,
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
            max_plain_text_length=_MAX_PASTED_LEN,
        )
        with gr.Sidebar(position="right", open=False, width=330, elem_id="settings"):
            panel = settings_panel(model, page.default_settings)

        handlers = Handlers(page)
        shown = [conversation, chat, question, *panel.inputs]

        def defaults(choice: str | None, preset: str | None, conversation: Conversation | None) -> list[Any]:
            """Return the default settings of a model, for a chat that is new and has no other ones."""
            if preset != DEFAULT or (conversation is not None and conversation.turns):
                return [gr.skip()] * len(panel.of_preset)
            return values_of(DEFAULT, {}, page.default_settings(choice or "")) or []

        async def look(
            names: list[str], chosen: str | None, preset: str | None, conversation: Conversation | None
        ) -> list[Any]:
            header_now, names_now = await page.header()
            if not names_now or names_now == names:
                return [header_now, *[gr.skip()] * (3 + len(panel.of_preset))]
            choice = chosen if chosen in names_now else names_now[0]
            choices = gr.update(choices=names_now, value=choice, visible=len(names_now) > 1)
            images = gr.update(sources=["upload"] if await served.takes_images() else [])
            return [header_now, names_now, choices, images, *defaults(choice, preset, conversation)]

        # Input is checked by `webui.guard`, and values that cannot be have defaults.
        following: dict[str, Any] = AT_ONCE | {
            "queue": True,
            "fn": handlers.follow,
            "inputs": conversation,
            "outputs": [chat, conversation, question, kept.kept],
            "concurrency_limit": None,
            "trigger_mode": "multiple",  # of several chats at once
        }
        outputs = [question, conversation, kept.kept]
        newest, settings = [kept.newer, conversation], panel.inputs
        sent = [question, *newest, *settings]
        question.submit(handlers.submit, sent, outputs, js=newer(1), **AT_ONCE).then(**following)
        chat.retry(handlers.retry, [*newest, *settings], outputs, js=newer(0), **AT_ONCE).then(**following)
        chat.edit(handlers.edit, [*newest, *settings], [chat, *outputs], js=newer(0), **AT_ONCE).then(**following)
        question.stop(handlers.stop, **AT_ONCE)
        blocks.unload(handlers.leave)

        showing: dict[str, Any] = {"fn": handlers.show, "inputs": kept.kept, "outputs": shown, "js": CHOSEN}
        kept.entries.select(**showing, **AT_ONCE).then(**following)
        clear.click(handlers.show_new, settings, shown, js=LEAVE, **AT_ONCE)
        kept.entries.clear(handlers.show_after_deletion, settings, shown, js=LEAVE, **AT_ONCE)
        stepped = {"inputs": [*newest, kept.step, *settings], "outputs": [chat, *outputs], "js": STEP}
        kept.entries.apply(handlers.show_response, **stepped, **AT_ONCE).then(**following)
        kept.load.upload(handlers.take_file, kept.load, [*shown, kept.kept], **AT_ONCE)
        kept.export_json.click(handlers.as_json, kept.kept, kept.file, js=CURRENT, **AT_ONCE)
        kept.export_markdown.click(handlers.as_markdown, kept.kept, kept.file, js=CURRENT, **AT_ONCE)

        looking: dict[str, Any] = {
            "fn": look,
            "inputs": [offered, model, panel.preset, conversation],
            "outputs": [header, offered, model, question, *panel.of_preset],
        }
        # One after the other: a chat that the browser kept has settings of its own.
        blocks.load(**showing, **AT_ONCE).then(**looking, **AT_ONCE).then(**following)
        model.input(defaults, [model, panel.preset, conversation], panel.of_preset, **AT_ONCE)
        status_timer = gr.Timer(STATUS_SECONDS)
        status_timer.tick(**looking, **AT_ONCE)
        # In the browser: answers of a server could overtake each other.
        kept.entries.blur(None, None, status_timer, js='() => ({__type__: "update", active: false})')
        kept.entries.focus(None, None, status_timer, js='() => ({__type__: "update", active: true})')
    blocks.page = page
    return blocks
