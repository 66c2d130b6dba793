"""The page's state: the connection to the server, and the running responses."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lmdeploy.serve.client import TritonUnavailable
from webui.conversation import Turn
from webui.generating import Server, generate_last
from webui.metrics import Watch
from webui.settings import Settings, settings_of
from webui.view import chat_view, header_html

REDRAW_SECONDS = 0.05


@dataclass
class Page:
    """What all browsers share: the connection, and the running response of each browser session.

    Attributes
    ----------
    model_name
        Shown as title; ``None`` asks the server.
    watch
        Its metrics.
    running
        Tasks by Gradio session. Cancelling one cancels the request in the engine.
    shown
        Ids of the conversations that are shown, by Gradio session.
    """

    server: Server
    model_name: str | None
    watch: Watch
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    async def header(self) -> tuple[str, list[str]]:
        """Return the title line, and what may answer: the model itself first, then its adapters.

        The latter is empty while the server is away.
        """
        is_ready = await self.server.is_ready()
        try:
            names = await self.server.models() if is_ready else []
        except TritonUnavailable:
            names, is_ready = [], False
        name = self.model_name or (names[0] if names else "Chat")
        shown = ("ready", "ready") if is_ready else ("away", "The model server is away")
        return header_html(name, *shown), names

    def default_settings(self, model: str) -> Settings:
        """Return the settings that a model recommends, or those of every model where the server reports none."""
        return settings_of(self.server.sampling_defaults(model))

    def is_generating(self, session: str | None) -> bool:
        """Return whether a response is running in a browser session."""
        return (session or "") in self.running

    def stop(self, session: str | None) -> None:
        """Stop the running response of a browser session, if there is one."""
        task = self.running.get(session or "")
        if task is not None:
            task.cancel()

    def show(self, session: str | None, conversation: str) -> None:
        """Hear which conversation a browser session shows from now on. A response in another one is stopped."""
        if self.shown.get(session or "") != conversation:
            self.stop(session)
        self.shown[session or ""] = conversation

    def leave(self, session: str | None) -> None:
        """Forget a browser session."""
        self.stop(session)
        self.shown.pop(session or "", None)

    async def generate(
        self, turns: list[Turn], settings: Settings, session: str
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Generate the last turn's response, and yield the chat to show whenever it has changed."""
        task = asyncio.create_task(generate_last(self.server, turns, settings))
        self.running[session] = task
        try:
            shown = None
            while not task.done():
                if (size := turns[-1].response.size) != shown:
                    shown = size
                    yield chat_view(turns)
                await asyncio.wait({task}, timeout=REDRAW_SECONDS)
            yield chat_view(turns)
        finally:
            task.cancel()
            if self.running.get(session) is task:
                del self.running[session]
