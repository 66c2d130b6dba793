"""The page's state: the connection to the server, and the responses that are generated."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from webui.conversations import Conversation
from webui.generating import generate_last
from webui.openai_client import OpenAIClient, ServerUnavailable
from webui.settings import Settings, settings_of
from webui.view import header_html

REDRAW_SECONDS = 0.05
LEFT_SECONDS = 15.0  # for which a response goes on without an open page: one that is loaded again comes back to it
MAX_RUNNING = 4  # responses of a browser session
_POLL_SECONDS = 0.2


@dataclass
class Generation:
    """The response that a conversation's last question is getting."""

    conversation: Conversation
    work: asyncio.Task[None]  # cancelling it cancels the request in the engine
    # Browser sessions whose page is open; the first of them saves the conversation
    followers: list[str] = field(default_factory=list)
    left: float = field(default_factory=time.monotonic)  # when the last of them went, in ``time.monotonic()``
    is_seen: bool = False  # one of them has all of it


@dataclass
class Page:
    """Shared state of all browsers: the connection, and the responses that are generated."""

    server: OpenAIClient
    model_name: str | None  # shown as title; ``None`` asks the server
    generations: dict[str, Generation] = field(default_factory=dict)  # by id of their conversation
    shown: dict[str, str] = field(default_factory=dict)  # ids of the conversations that are shown, by Gradio session
    _owners: set[asyncio.Task[None]] = field(default_factory=set)

    async def header(self) -> tuple[str, list[str]]:
        """Return the title line, and what may answer: the model itself first, then its adapters.

        The latter is empty while the server is away.
        """
        is_ready = await self.server.is_ready()
        try:
            names = await self.server.models() if is_ready else []
        except ServerUnavailable:
            names, is_ready = [], False
        name = self.model_name or (names[0] if names else "Chat")
        shown = ("ready", "ready") if is_ready else ("away", "The model server is away")
        return header_html(name, *shown), names

    def default_settings(self, model: str) -> Settings:
        """Return the settings that a model recommends, or those of every model where the server reports none."""
        return settings_of(self.server.sampling_defaults(model))

    def is_generating(self, conversation: str | None) -> bool:
        """Return whether a conversation is getting a response."""
        return conversation in self.generations and not self.generations[conversation or ""].work.done()

    def stop(self, session: str | None) -> None:
        """Stop the response of the conversation that a browser session shows, if it is getting one."""
        if generation := self.generations.get(self.shown.get(session or "", "")):
            generation.work.cancel()

    def leave(self, session: str | None) -> None:
        """Forget a browser session."""
        self.shown.pop(session or "", None)
        for generation in self.generations.values():
            _unfollow(generation, session or "")

    def begin(self, conversation: Conversation, settings: Settings) -> None:
        """Generate the response to a conversation's last question, whatever is shown meanwhile."""
        work = asyncio.create_task(generate_last(self.server, conversation.turns, settings))
        generation = self.generations[conversation.id] = Generation(conversation, work)
        owner = asyncio.create_task(self._keep(generation))
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)

    async def _keep(self, generation: Generation) -> None:
        """Keep a generation until somebody has seen all of it, or nobody comes back to it."""
        try:
            while not generation.is_seen:
                if not generation.followers and time.monotonic() - generation.left > LEFT_SECONDS:
                    break
                if generation.work.done():
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    await asyncio.wait({generation.work}, timeout=_POLL_SECONDS)
        finally:
            generation.work.cancel()
            if self.generations.get(generation.conversation.id) is generation:
                del self.generations[generation.conversation.id]

    async def follow(self, conversation: str, session: str) -> AsyncIterator[tuple[Generation, bool]]:
        """Yield a conversation's generation whenever it has changed, and whether it was the last time."""
        generation = self.generations.get(conversation)
        if generation is None or session in generation.followers:
            return
        generation.followers.append(session)
        try:
            shown = None
            while not generation.work.done():
                if (now := (generation.conversation.turns[-1].response.size, self.shown.get(session))) != shown:
                    shown = now
                    yield generation, False
                await asyncio.wait({generation.work}, timeout=REDRAW_SECONDS)
            yield generation, True
            generation.is_seen = True
        finally:
            _unfollow(generation, session)

    async def close(self) -> None:
        """Stop all responses, and close the connection."""
        for owner in list(self._owners):
            owner.cancel()
        await asyncio.gather(*self._owners, return_exceptions=True)
        await self.server.close()


def _unfollow(generation: Generation, session: str) -> None:
    if session in generation.followers:
        generation.followers.remove(session)
        generation.left = time.monotonic()
