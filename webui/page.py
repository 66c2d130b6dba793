"""What stands behind the page: the connection to the server, the running answers, and how a conversation is shown."""

import asyncio
import html
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lmdeploy.serve.client import TritonRequestError, TritonUnavailable
from webui.conversation import Outcome, Settings, Turn, answer_last
from webui.openai_client import OpenAIClient
from webui.triton import TritonServer

REDRAW_SECONDS = 0.05


@dataclass
class Page:
    """What all browsers share: the connection, and the running answer of each browser session.

    Attributes
    ----------
    model_name
        Shown as title; ``None`` asks the server.
    running
        Tasks by Gradio session. Cancelling one cancels the request in the engine.
    """

    client: TritonServer | OpenAIClient
    model_name: str | None
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def header(self) -> str:
        """Return the title line: model name, and whether the server answers."""
        name, ready = self.model_name, await self.client.is_ready()
        if ready and name is None:
            try:
                name = await self.client.model_name()
            except TritonUnavailable:
                ready = False
        shown = (name or "Chat", "ready", "ready") if ready else (name or "Chat", "away", "The model server is away")
        return header_html(*shown)

    async def models(self) -> list[str]:
        """Return what may answer, the model itself first, then its adapters; empty while the server is away."""
        try:
            return await self.client.models()
        except (TritonUnavailable, TritonRequestError):
            return []

    def is_answering(self, session: str | None) -> bool:
        """Return whether an answer is running in a browser session."""
        return (session or "") in self.running

    def stop(self, session: str | None) -> None:
        """Stop the running answer of a browser session, if there is one."""
        task = self.running.get(session or "")
        if task is not None:
            task.cancel()

    async def answer(self, turns: list[Turn], settings: Settings, session: str) -> AsyncIterator[list[dict[str, Any]]]:
        """Generate the last turn's answer, and yield the chat to show whenever it has changed."""
        task = asyncio.create_task(answer_last(self.client, turns, settings))
        self.running[session] = task
        try:
            shown = None
            while not task.done():
                if (shown_now := len(turns[-1].answer)) != shown:
                    shown = shown_now
                    yield chat_view(turns)
                await asyncio.wait({task}, timeout=REDRAW_SECONDS)
            yield chat_view(turns)
        finally:
            task.cancel()
            if self.running.get(session) is task:
                del self.running[session]


def header_html(name: str, state: str, status: str) -> str:
    """Return the title line as HTML; ``state`` is ``ready``, ``away`` or ``waiting``."""
    title = f"<h1>{html.escape(name)}</h1>"
    return f'<div class="title">{title}<span class="status {state}">{html.escape(status)}</span></div>'


def chat_view(turns: list[Turn]) -> list[dict[str, Any]]:
    """Return a conversation as Gradio shows it: under each answer its summary, or what went wrong."""
    shown: list[dict[str, Any]] = []
    for turn in turns:
        shown += [{"role": "user", "content": {"path": picture}} for picture in turn.pictures]
        shown.append({"role": "user", "content": turn.question})
        if turn.answer or turn.outcome is Outcome.RUNNING:
            shown.append({"role": "assistant", "content": turn.answer or "…"})
        if turn.error:
            shown.append({"role": "assistant", "content": f'<span class="notice">{html.escape(turn.error)}</span>'})
        elif turn.outcome is not Outcome.RUNNING:
            shown.append({"role": "assistant", "content": f"<small>{html.escape(turn.summary())}</small>"})
    return shown
