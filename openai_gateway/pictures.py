"""Pictures that requests name elsewhere: fetched beside the event loop, as the settings allow, and put into them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lmdeploy.vl.fetching import FetchRules, default_seconds, fetch
from lmdeploy.vl.sources import SourceRules, read_file, url_scheme
from openai_gateway.errors import ApiError

_THREADS = 8  # pictures fetched at a time; others wait
_MOST = 64  # pictures and videos of a request
_KINDS = ("image_url", "video_url")  # type of a part, and the key of what it is of


class PictureDoor:
    """What lets pictures in.

    Parameters
    ----------
    hosts
        Names of hosts they are fetched from, ``*`` for any; None: from none.
    folder
        Files in it may be named; None: none may.
    """

    def __init__(self, hosts: tuple[str, ...] | None, folder: Path | None) -> None:
        fetching = FetchRules(hosts, seconds=default_seconds())
        self._rules = SourceRules(fetching, folder)
        self._fetchers = ThreadPoolExecutor(_THREADS, thread_name_prefix="pictures")

    async def brought_along(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages whose pictures are all data URLs.

        Raises
        ------
        ApiError
            There are too many, or one may not be had, or cannot be; names it.
        """
        places = [
            (i, j)
            for i, message in enumerate(messages)
            if isinstance(message.get("content"), list)
            for j, part in enumerate(message["content"])
            if part["type"] in _KINDS
        ]
        if len(places) > _MOST:
            raise ApiError(400, f"A request may have at most {_MOST} pictures, got {len(places)}.", param="messages")
        brought = [{**message} for message in messages]
        for message in brought:
            if isinstance(message.get("content"), list):
                message["content"] = list(message["content"])
        contents = await asyncio.gather(*(self._url(messages[i]["content"][j], i, j) for i, j in places))
        for (i, j), url in zip(places, contents, strict=True):
            part = messages[i]["content"][j]
            kind = part["type"]
            brought[i]["content"][j] = {**part, kind: {**part[kind], "url": url}}
        return brought

    async def _url(self, part: Mapping[str, Any], i: int, j: int) -> str:
        kind = part["type"]
        url: str = part[kind]["url"]
        if url_scheme(url) == "data":
            return url
        try:
            content = await asyncio.get_running_loop().run_in_executor(self._fetchers, self._read, url)
        except ValueError as error:
            where = f"messages[{i}].content[{j}].{kind}.url"
            raise ApiError(400, f"{where}: {error}", param=where, code=f"invalid_{kind}") from None
        return f"data:image/any;base64,{base64.b64encode(content).decode()}"

    def _read(self, url: str) -> bytes:
        if url_scheme(url) in ("http", "https"):
            return fetch(url, self._rules.fetch_rules)
        return read_file(url, self._rules)
