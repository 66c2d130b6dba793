"""Media fetched for requests, outside the event loop, as the settings allow."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmdeploy.vl.fetching import FetchRules, default_seconds, fetch
from lmdeploy.vl.sources import SourceRules, read_file, url_scheme
from openai_gateway.errors import ApiError
from openai_gateway.shares import Shares

_THREADS = 8  # images fetched at a time, each for another request; others wait
_MAX_MEDIA = 64  # images and videos of a request
_KINDS = ("image_url", "video_url")  # type of a part, and the key of what it is of
DOCUMENT = "document"  # type of a part that stands for a file which nobody here reads
PLACEHOLDER, REFUSE = "placeholder", "refuse"  # for media in tool results that a model cannot read
# At these words of Anthropic's API, Claude Code sends the conversation again without the image or the PDF.
_UNSUPPORTED = {
    True: "The PDF specified was not valid: documents of this type are not read by this server; send their text.",
    False: "Could not process image: this model reads text only; leave images out.",
}
_SECONDS = 60.0  # for all images of a request
REQUEST_BYTES = 64 << 20  # of the files that a request names elsewhere
PROCESS_BYTES = 128 << 20  # of those of all requests that are open in this process; some four times as much memory


class MediaFetcher:
    """Fetcher of the images that requests name.

    ``hosts``: names of hosts they are fetched from, ``*`` for any; None: from none. ``folder``: files in it may be
    named; None: none may.
    """

    def __init__(self, hosts: tuple[str, ...] | None, folder: Path | None) -> None:
        self._rules = SourceRules(FetchRules(hosts, seconds=default_seconds()), folder)
        self._fetchers = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")
        self._shares = Shares(PROCESS_BYTES)

    @property
    def rules(self) -> SourceRules:
        """Sources that may be named."""
        return self._rules

    async def content(self, url: str, max_bytes: int, seconds: float) -> bytes:
        """Return a file of at most this many bytes, which count until they are given back.

        Raises `ApiError` if so much is held already that there is no space for it, and `ValueError` if it may not be
        had, or cannot be in this many seconds.
        """
        try:
            await self._shares.take(None, max_bytes, self._rules.fetch_rules.seconds)
        except TimeoutError:
            raise ApiError(503, "Too many images are being fetched; try again later.", code="overloaded") from None
        content = b""
        try:
            loop = asyncio.get_running_loop()
            content = await loop.run_in_executor(self._fetchers, self._read, url, max_bytes, seconds)
        finally:
            self.release(max_bytes - len(content))
        return content

    def release(self, count: int) -> None:
        """Make room for others."""
        self._shares.release(None, count)

    def _read(self, url: str, max_bytes: int, seconds: float) -> bytes:
        if url_scheme(url) in ("http", "https"):
            return fetch(url, replace(self._rules.fetch_rules, max_bytes=max_bytes, seconds=seconds))
        return read_file(url, replace(self._rules, limits=replace(self._rules.limits, max_bytes=max_bytes)))


def readable_messages(
    messages: Sequence[dict[str, Any]], *, is_text_only: bool, in_tool_results: str = PLACEHOLDER
) -> list[dict[str, Any]]:
    """Return messages with the media that a model reads, where its chat template takes them.

    An agent sends what a tool returned in every later request, so a refusal would end its conversation for good: a text
    takes the place of media that cannot be read in tool results, and in a user's message right after them, where
    programs put what tool messages of their API do not take. Few chat templates write images within tool results: those
    that can be read become the user's, after the last of the results. Raises `ApiError` if Media elsewhere cannot be
    read; or in tool results, and `in_tool_results` is ``refuse``.
    """
    shown: list[dict[str, Any]] = []
    moved: list[dict[str, Any]] = []
    before = None
    for message in messages:
        role, content = message.get("role"), message.get("content")
        is_result = role == "tool" or (role == "user" and before == "tool")
        before = role
        if isinstance(content, list):
            parts = []
            for part in content:
                is_document = part["type"] == DOCUMENT
                if is_document or (is_text_only and part["type"] in _KINDS):
                    if not is_result or in_tool_results == REFUSE:
                        raise ApiError(400, _UNSUPPORTED[is_document], param="messages", code="unsupported_value")
                    why = "documents are not read here" if is_document else "this model reads text only"
                    part = {"type": "text", "text": f"[{part['type'].removesuffix('_url')} left out: {why}]"}
                elif role == "tool" and part["type"] in _KINDS:
                    moved.append(part)
                    part = {"type": "text", "text": "[shown in the next message]"}
                parts.append(part)
            is_text = all(part["type"] == "text" for part in parts)
            message = {**message, "content": "\n".join(part["text"] for part in parts) if is_text else parts}
        if moved and role == "user":
            body = message["content"]
            parts = [{"type": "text", "text": body}] if isinstance(body, str) else body
            message, moved = {**message, "content": [*moved, *parts]}, []
        elif moved and role != "tool":
            shown.append({"role": "user", "content": moved})
            moved = []
        shown.append(message)
    return [*shown, {"role": "user", "content": moved}] if moved else shown


class RequestMedia:
    """The images of one request, fetched one after the other."""

    def __init__(self, fetcher: MediaFetcher) -> None:
        self._fetcher = fetcher
        self._reserved = 0  # bytes
        self._deadline = time.monotonic() + _SECONDS

    def release(self) -> None:
        """Make room for those of others, at the end of the request."""
        self._fetcher.release(self._reserved)
        self._reserved = 0

    async def brought_along(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages whose images are all data URLs.

        Raises `ApiError` if there are too many, or one is not allowed or cannot be loaded; names it.
        """
        found = [
            (i, j)
            for i, message in enumerate(messages)
            if isinstance(message.get("content"), list)
            for j, part in enumerate(message["content"])
            if part["type"] in _KINDS
        ]
        if len(found) > _MAX_MEDIA:
            raise ApiError(400, f"A request may have at most {_MAX_MEDIA} images, got {len(found)}.", param="messages")
        messages_read = [{**message} for message in messages]
        for message in messages_read:
            if isinstance(message.get("content"), list):
                message["content"] = list(message["content"])
        for i, j in found:
            part = messages[i]["content"][j]
            kind = part["type"]
            url = await self._url(part, i, j)
            messages_read[i]["content"][j] = {**part, kind: {**part[kind], "url": url}}
        return messages_read

    async def _url(self, part: Mapping[str, Any], i: int, j: int) -> str:
        kind = part["type"]
        url: str = part[kind]["url"]
        if url_scheme(url) == "data":
            return url
        try:
            content = await self._content(url)
        except ValueError as error:
            where = f"messages[{i}].content[{j}].{kind}.url"
            raise ApiError(400, f"{where}: {error}", param=where, code=f"invalid_{kind}") from None
        return f"data:image/any;base64,{base64.b64encode(content).decode()}"

    async def _content(self, url: str) -> bytes:
        rules = self._fetcher.rules
        max_bytes = min(rules.limits.max_bytes, REQUEST_BYTES - self._reserved)
        seconds = min(rules.fetch_rules.seconds, self._deadline - time.monotonic())
        if max_bytes <= 0:
            raise ValueError(f"the files that a request names must have at most {REQUEST_BYTES} bytes together")
        if seconds <= 0:
            raise ValueError(f"the files that a request names must come within {_SECONDS:g} s")
        content = await self._fetcher.content(url, max_bytes, seconds)
        self._reserved += len(content)
        return content
