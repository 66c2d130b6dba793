"""The list of conversations that the browser keeps, folded at the page's left side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

BROWSER = (Path(__file__).parent / "browser.js").read_text(encoding="utf-8")
"""JavaScript for the page's head: what keeps the conversations, and draws their list."""

SAVE = "(conversation) => { chats.save(conversation); return [] }"
CHOSEN = "() => [chats.chosen()]"
CURRENT = "() => [chats.current()]"
STEP = "(newer, conversation, step, ...settings) => [chats.newer(), conversation, chats.step(), ...settings]"
LEAVE = "(...settings) => { chats.leave(); return settings }"
DOWNLOAD = "(file) => { chats.download(file); return [] }"


def newer(index: int) -> str:
    """Return JavaScript that puts the shown conversation, as another tab has changed it, among an event's values."""
    return f"(...values) => values.with({index}, chats.newer())"


@dataclass
class ConversationList:
    """Its parts."""

    # Reports ``select`` when a conversation is chosen, ``clear`` when the shown one is deleted, and ``apply`` when
    # another response is to be shown
    entries: Any
    kept: Any  # what the browser is to keep, or has kept
    newer: Any  # the shown conversation, where another tab has changed it
    step: Any  # number of a turn, and where the response is that it is to show, seen from the shown one
    file: Any  # what is exported, ``name`` and ``text``
    export_json: Any
    export_markdown: Any
    load: Any


def conversation_list() -> ConversationList:
    """Build the list; call it where it is to be."""
    entries = gr.HTML(
        elem_id="chats",
        html_template="",
        js_on_load="chats.mount(element, (event) => trigger(event))",
        apply_default_css=False,
    )
    with gr.Row(elem_id="files"):
        load = gr.UploadButton("Import", elem_id="import", size="sm", file_types=[".json"], min_width=60)
        export_json = gr.Button("Save .json", elem_id="export-json", size="sm", min_width=60)
        export_markdown = gr.Button("Save .md", elem_id="export-markdown", size="sm", min_width=60)
    kept, changed, step, file = (gr.JSON(visible=False) for _ in range(4))
    kept.change(None, kept, None, js=SAVE)
    file.change(None, file, None, js=DOWNLOAD)
    return ConversationList(entries, kept, changed, step, file, export_json, export_markdown, load)
