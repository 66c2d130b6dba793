"""What happens when the page is used: questions, responses, and which conversation is shown.

The shown conversation is kept by Gradio a browser session at a time (``gr.State``), so every browser tab has its own;
all of them are kept by the browser (`browser.js`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from webui import uploads
from webui.conversation import Turn
from webui.conversations import MOST_TURNS, Conversation, conversation_of, imported
from webui.export import as_json, as_markdown, file_name
from webui.page import Page
from webui.settings import Settings
from webui.settings_panel import settings_from, updates_for
from webui.view import chat_view, turn_at

_LONGEST = 4 * 2**20  # characters of a conversation


class Asking:
    """The page's handlers. What they take and return is where they are bound (`webui.blocks`)."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def ask(self, asked: dict[str, Any], said: Conversation | None, request: gr.Request, *values: Any) -> list[Any]:
        """Take what was written as a question."""
        text = asked["text"].strip()
        if not text or self._page.is_generating(request.session_hash):
            return [gr.skip()] * 3
        said = said or Conversation()
        if _is_too_long(said, text):
            return [gr.skip()] * 3
        said.turns.append(Turn(text, images=tuple(each["path"] for each in asked["files"])))
        return self._begin(said, request, values, value=None)

    def ask_again(self, said: Conversation | None, data: gr.RetryData, request: gr.Request, *values: Any) -> list[Any]:
        """Want another response to the last question."""
        if said is None or not said.turns or self._page.is_generating(request.session_hash) or _is_too_long(said):
            return [gr.skip()] * 3
        said.turns[-1].ask_again()
        return self._begin(said, request, values)

    def ask_otherwise(
        self, said: Conversation | None, data: gr.EditData, request: gr.Request, *values: Any
    ) -> list[Any]:
        """Take a question in other words; what was said after it is forgotten."""
        if said is None or not said.turns:
            return [gr.skip()] * 4
        text = data.value.strip() if isinstance(data.value, str) else ""
        is_asked = text and isinstance(data.index, int) and not self._page.is_generating(request.session_hash)
        if not is_asked or _is_too_long(said, text):
            return [chat_view(said.turns), *[gr.skip()] * 3]
        number = turn_at(said.turns, data.index)
        said.turns[number:] = [Turn(text, images=said.turns[number].images)]
        return [chat_view(said.turns), *self._begin(said, request, values)]

    def _begin(self, said: Conversation, request: gr.Request, values: Any, **question: Any) -> list[Any]:
        said.settings = settings_from(values)
        self._page.show(request.session_hash, said.id)
        return [_question(True, **question), said, said.to_json()]

    async def generate(
        self, said: Conversation | None, names: list[str], request: gr.Request, *values: Any
    ) -> AsyncIterator[list[Any]]:
        """Answer the last question, if it waits for a response."""
        session = request.session_hash or ""
        if said is None or not said.is_running or self._page.is_generating(session):
            return
        settings = settings_from(values)
        async for view in self._page.generate(said.turns, settings, session):
            if self._page.shown.get(session) == said.id:
                yield [view, gr.skip(), gr.skip(), gr.skip()]
        if self._page.shown.get(session) == said.id:
            yield [chat_view(said.turns), said, _question(False), said.to_json()]
        else:  # another conversation is there by now
            yield [gr.skip(), gr.skip(), gr.skip(), said.to_json()]

    def stop(self, request: gr.Request) -> None:
        """Stop the running response."""
        self._page.stop(request.session_hash)

    def leave(self, request: gr.Request) -> None:
        """Hear that a browser's page was closed."""
        self._page.leave(request.session_hash)

    def show(self, reported: Any, request: gr.Request) -> list[Any]:
        """Show a conversation that the browser kept."""
        if not reported:
            return [gr.skip()] * (3 + len(updates_for(Settings())))
        return self._show(conversation_of(reported, uploads.folder()), request)

    def show_new(self, request: gr.Request, *values: Any) -> list[Any]:
        """Begin a conversation, with the settings as they are but without a system prompt."""
        settings = settings_from(values)
        return self._show(Conversation(settings=Settings(**{**vars(settings), "system_prompt": ""})), request)

    def show_response(self, said: Conversation | None, step: Any, request: gr.Request) -> list[Any]:
        """Show another response to a question, or all of them."""
        if said is None:
            return [gr.skip()] * 3
        if isinstance(step, list) and len(step) == 2 and not self._page.is_generating(request.session_hash):
            number, steps = step
            if isinstance(number, int) and 0 <= number < len(said.turns) and isinstance(steps, int):
                turn = said.turns[number]
                turn.is_compared = turn.is_compared != (steps == 0)
                turn.show(steps)
        return [said, chat_view(said.turns), said.to_json()]

    def take_file(self, file: dict[str, str], request: gr.Request) -> list[Any]:
        """Show a conversation that was exported, and keep it."""
        try:
            said = imported(Path(file["path"]).read_text(encoding="utf-8", errors="replace"))
        except ValueError as error:
            gr.Warning(f"{error}.")
            return [gr.skip()] * (4 + len(updates_for(Settings())))
        return [*self._show(said, request), said.to_json()]

    def as_json(self, reported: Any) -> dict[str, str] | None:
        """Export the shown conversation."""
        said = conversation_of(reported)
        return {"name": file_name(said, "json"), "text": as_json(said)} if said.turns else None

    def as_markdown(self, reported: Any) -> dict[str, str] | None:
        """Export the shown conversation as a document."""
        said = conversation_of(reported)
        return {"name": file_name(said, "md"), "text": as_markdown(said)} if said.turns else None

    def _show(self, said: Conversation, request: gr.Request) -> list[Any]:
        self._page.show(request.session_hash, said.id)
        return [said, chat_view(said.turns), _question(False, value=None), *updates_for(said.settings)]


def _is_too_long(said: Conversation, text: str = "") -> bool:
    """Return whether no more can be said, and say so to the reader."""
    is_it = said.length + len(text) > _LONGEST or len(said.turns) >= MOST_TURNS
    if is_it:
        gr.Warning("This conversation is too long to continue. Begin a new one.")
    return is_it


def _question(is_running: bool, **further: Any) -> Any:
    """Return what the field for questions becomes while a response runs, or when none does."""
    return gr.update(submit_btn=not is_running, stop_btn=is_running, **further)
