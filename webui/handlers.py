"""Event handlers of the page: questions, responses, and the choice of the conversation.

The shown conversation is kept by Gradio a browser session at a time (``gr.State``), so every browser tab has its own;
all of them are kept by the browser (`browser.js`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import gradio as gr

from webui import uploads
from webui.conversation import Turn
from webui.conversations import MAX_TITLE, MAX_TURNS, Conversation, conversation_of, imported
from webui.export import as_json, as_markdown, file_name
from webui.page import MAX_RUNNING, Page
from webui.settings import Settings
from webui.settings_panel import settings_from, updates_for
from webui.view import CONTINUE, chat_view, turn_at

_MAX_LEN = 4 * 2**20  # characters of a conversation
_SAVE_SECONDS = 1.0


class Handlers:
    """The page's handlers. What they take and return is where they are bound (`webui.blocks`)."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def submit(
        self, question: dict[str, Any], newer: Any, conversation: Conversation | None, request: gr.Request, *values: Any
    ) -> list[Any]:
        """Take what was written as a question."""
        text, conversation = question["text"].strip(), self._newest(newer, conversation) or Conversation()
        if not text or not self._may_submit(conversation, request, text):
            return [gr.skip()] * 3
        conversation.turns.append(Turn(text, images=tuple(file["path"] for file in question["files"])))
        return self._begin(conversation, request, values, value=None)

    async def retry(
        self, newer: Any, conversation: Conversation | None, data: gr.RetryData, request: gr.Request, *values: Any
    ) -> list[Any]:
        """Want another response to the last question."""
        conversation = self._newest(newer, conversation)
        if conversation is None or not conversation.turns or not self._may_submit(conversation, request):
            return [gr.skip()] * 3
        conversation.turns[-1].regenerate()
        return self._begin(conversation, request, values)

    async def edit(
        self, newer: Any, conversation: Conversation | None, data: gr.EditData, request: gr.Request, *values: Any
    ) -> list[Any]:
        """Take a question in other words; what was said from it on stays in the chat that it was said in."""
        conversation = self._newest(newer, conversation)
        if conversation is None or not conversation.turns:
            return [gr.skip()] * 4
        text = data.value.strip() if isinstance(data.value, str) else ""
        if not text or not isinstance(data.index, int) or not self._may_submit(conversation, request, text):
            return [chat_view(conversation.turns), *[gr.skip()] * 3]
        number = turn_at(conversation.turns, data.index)
        before, turn = conversation.turns[:number], conversation.turns[number]
        branch = Conversation(turns=[*before, Turn(text, images=turn.images)])
        branch.name = f"{conversation.title[: MAX_TITLE - 9]} (edited)" if number else ""
        return [chat_view(branch.turns), *self._begin(branch, request, values)]

    def _newest(self, reported: Any, conversation: Conversation | None) -> Conversation | None:
        """Return the shown conversation; `reported` is what another tab made of it meanwhile."""
        if not reported:
            return conversation
        newer = conversation_of(reported, uploads.folder())
        generation = self._page.generations.get(newer.id)
        return generation.conversation if generation else newer

    def _may_submit(self, conversation: Conversation, request: gr.Request, text: str = "") -> bool:
        """Return whether more can be said now, and tell the reader if not."""
        of_session = [run for run in self._page.generations.values() if request.session_hash in run.followers]
        if self._page.is_generating(conversation.id):
            problem = "This chat is getting a response. Wait for it, or stop it."
        elif len(of_session) >= MAX_RUNNING:
            problem = f"{MAX_RUNNING} chats are getting a response. Wait for one, or stop it."
        elif conversation.length + len(text) > _MAX_LEN or len(conversation.turns) >= MAX_TURNS:
            problem = "This conversation is too long to continue. Begin a new one."
        else:
            return True
        gr.Warning(problem)
        return False

    def _begin(self, conversation: Conversation, request: gr.Request, values: Any, **question: Any) -> list[Any]:
        conversation.settings = settings_from(values)
        self._page.shown[request.session_hash or ""] = conversation.id
        self._page.begin(conversation, conversation.settings)
        return [_question(True, **question), conversation, _kept(conversation, is_shown=True)]

    async def follow(self, conversation: Conversation | None, request: gr.Request) -> AsyncIterator[list[Any]]:
        """Show the response that a conversation is getting as it grows, and have the browser save it."""
        session, saved = request.session_hash or "", 0.0
        yield [gr.skip()] * 4  # Gradio empties the outputs of what yields nothing
        async for generation, is_over in self._page.follow(conversation.id if conversation else "", session):
            now = generation.conversation
            is_shown, view = self._page.shown.get(session) == now.id, chat_view(now.turns)
            is_saved = generation.followers[:1] == [session] and (is_over or time.monotonic() - saved > _SAVE_SECONDS)
            saved = time.monotonic() if is_saved else saved
            kept = _kept(now, is_shown=is_shown) if is_saved else gr.skip()
            if is_shown:
                yield [view, now, _question(False) if is_over else gr.skip(), kept]
            else:
                yield [gr.skip(), gr.skip(), gr.skip(), kept]

    async def stop(self, request: gr.Request) -> None:
        """Stop the running response."""
        self._page.stop(request.session_hash)

    async def leave(self, request: gr.Request) -> None:
        """Hear that a browser's page was closed."""
        self._page.leave(request.session_hash)

    async def show(self, reported: Any, request: gr.Request) -> list[Any]:
        """Show a conversation that the browser kept."""
        conversation = self._newest(reported, None)
        if conversation is None:
            return [gr.skip()] * (3 + len(updates_for(Settings())))
        return self._show(conversation, request)

    async def show_new(self, request: gr.Request, *values: Any) -> list[Any]:
        """Begin a conversation, with the settings as they are but without a system prompt."""
        settings = settings_from(values)
        return self._show(Conversation(settings=Settings(**{**vars(settings), "system_prompt": ""})), request)

    async def show_after_deletion(self, request: gr.Request, *values: Any) -> list[Any]:
        """Begin a conversation in place of one that the browser keeps no more."""
        self._page.stop(request.session_hash)
        return await self.show_new(request, *values)

    async def show_response(
        self, newer: Any, conversation: Conversation | None, step: Any, request: gr.Request, *values: Any
    ) -> list[Any]:
        """Show another response to a question, or all of them, or continue the last one."""
        conversation = self._newest(newer, conversation)
        if conversation is None:
            return [gr.skip()] * 4
        if isinstance(step, list) and len(step) == 2 and not self._page.is_generating(conversation.id):
            number, steps = step
            if isinstance(number, int) and 0 <= number < len(conversation.turns) and isinstance(steps, int):
                turn = conversation.turns[number]
                if steps == CONTINUE:
                    is_last = turn is conversation.turns[-1]
                    if not is_last or not turn.response.may_continue or not self._may_submit(conversation, request):
                        return [gr.skip()] * 4
                    turn.response.resume()
                    return [chat_view(conversation.turns), *self._begin(conversation, request, values)]
                turn.is_compared = turn.is_compared != (steps == 0)
                turn.show(steps)
        return [chat_view(conversation.turns), gr.skip(), conversation, _kept(conversation, is_shown=True)]

    async def take_file(self, file: dict[str, str], request: gr.Request) -> list[Any]:
        """Show a conversation that was exported, and keep it."""
        try:
            conversation = await asyncio.to_thread(_read, file["path"])
        except ValueError as error:
            gr.Warning(f"{error}.")
            return [gr.skip()] * (4 + len(updates_for(Settings())))
        return [*self._show(conversation, request), _kept(conversation, is_shown=True)]

    def as_json(self, reported: Any) -> dict[str, str] | None:
        """Export the shown conversation."""
        return _exported(reported, "json", as_json)

    def as_markdown(self, reported: Any) -> dict[str, str] | None:
        """Export the shown conversation as a document."""
        return _exported(reported, "md", as_markdown)

    def _show(self, conversation: Conversation, request: gr.Request) -> list[Any]:
        session = request.session_hash or ""
        emptied = {} if self._page.shown.get(session) == conversation.id else {"value": None}
        self._page.shown[session] = conversation.id
        question = _question(self._page.is_generating(conversation.id), **emptied)
        return [conversation, chat_view(conversation.turns), question, *updates_for(conversation.settings)]


def _exported(reported: Any, suffix: str, text_of: Callable[[Conversation], str]) -> dict[str, str] | None:
    shown = conversation_of(reported)
    return {"name": file_name(shown, suffix), "text": text_of(shown)} if shown.turns else None


def _read(path: str) -> Conversation:
    return imported(Path(path).read_text(encoding="utf-8", errors="replace"))


def _kept(conversation: Conversation, *, is_shown: bool) -> dict[str, Any]:
    """Return the browser's copy of a conversation."""
    return conversation.to_json() | {"is_shown": is_shown}


def _question(is_running: bool, **further: Any) -> Any:
    """Return the update of the field for questions, while a response runs or when none does."""
    return gr.update(submit_btn=not is_running, stop_btn=is_running, **further)
