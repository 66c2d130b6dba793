"""Stored response, its store, and its ids."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from openai_gateway.database import Database, now, owner_name

logger = logging.getLogger(__name__)

DAYS_KEPT = 30
SECONDS_KEPT = DAYS_KEPT * 24 * 3600
_ITEM = re.compile(r"[a-z]{2,8}_([0-9a-f]{32})_[0-9a-f]{1,8}")
# The end of a process loses nothing, that of the machine the newest; a conversation is read without waits for the disk.
_SCHEMA = """
PRAGMA synchronous=NORMAL;
CREATE TABLE IF NOT EXISTS responses (
    owner TEXT, id TEXT, used REAL, size INTEGER, text BLOB, PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (owner, used, size);
"""


@dataclass(frozen=True)
class Bounds:
    """Upper bounds of the store."""

    # Of all responses of one API key
    owner_bytes: int
    owner_count: int
    seconds: int = SECONDS_KEPT  # after a response was last used


@dataclass(frozen=True)
class StoredResponse:
    """A response and what it was made from."""

    response: dict[str, Any]  # as callers get it
    input: list[dict[str, Any]]  # the items that were new in its request, each with an id
    previous: str | None = None  # the response that it continues; None: none

    @property
    def id(self) -> str:
        """The response's."""
        response_id: str = self.response["id"]
        return response_id

    @property
    def items(self) -> list[dict[str, Any]]:
        """Items that it adds to a conversation."""
        output: list[dict[str, Any]] = self.response["output"]
        return [*self.input, *output]

    def encoded(self) -> bytes:
        """Return it as JSON text."""
        return orjson.dumps({"response": self.response, "input": self.input, "previous": self.previous})

    @classmethod
    def decoded(cls, text: bytes) -> StoredResponse:
        """Return the inverse of `encoded`."""
        return cls(**orjson.loads(text))


class ResponseStore:
    """Keeps responses in SQLite; those of one API key are not there for another.

    ``folder``: of the file, which processes share and which outlives them; None: the memory of this process.
    """

    def __init__(self, folder: Path | None, bounds: Bounds, max_bytes: int | None = None) -> None:
        self._database = Database(None if folder is None else folder / "responses.sqlite", _SCHEMA)
        self._bounds = bounds
        # Of all together, as there may be any number of callers behind a proxy; who keeps most loses what it has not
        # used for longest. None: any number
        self._max_bytes = max_bytes
        self._clock: Callable[[], float] = time.monotonic if folder is None else now

    async def put(self, key: str | None, stored: StoredResponse) -> bool:
        """Keep a response, in place of the ones that were not used for longest; False: it is too large.

        Raises `OSError` if it cannot be written.
        """
        return await asyncio.to_thread(self._put, owner_name(key), stored)

    async def get(self, key: str | None, response_id: str) -> bytes | None:
        """Return a response, encoded, which is used by that; None: there is none of this id any more."""
        return await asyncio.to_thread(self._get, owner_name(key), response_id)

    async def delete(self, key: str | None, response_id: str) -> bool:
        """Forget a response; False: there was none."""
        return await asyncio.to_thread(self._delete, owner_name(key), response_id)

    async def clean(self) -> None:
        """Remove what has expired, also of keys that are gone."""
        with _logged_failures():
            await asyncio.to_thread(self._clean)

    def _put(self, owner: str, stored: StoredResponse) -> bool:
        text = stored.encoded()
        if len(text) > self._bounds.owner_bytes:
            return False
        row = (owner, stored.id, self._clock(), len(text), text)
        with self._database.transaction() as responses:
            responses.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?)", row)
            self._drop_old(responses, owner)
        return True

    def _get(self, owner: str, response_id: str) -> bytes | None:
        select = "SELECT text FROM responses WHERE owner = ? AND id = ? AND used > ?"
        use = "UPDATE responses SET used = ? WHERE owner = ? AND id = ?"
        with _logged_failures(), self._database.transaction() as responses:
            for (text,) in responses.execute(select, (owner, response_id, self._expired())).fetchall():
                responses.execute(use, (self._clock(), owner, response_id))
                return bytes(text)
        return None

    def _delete(self, owner: str, response_id: str) -> bool:
        delete = "DELETE FROM responses WHERE owner = ? AND id = ? AND used > ?"
        with self._database.transaction() as responses:
            return responses.execute(delete, (owner, response_id, self._expired())).rowcount > 0

    def _clean(self) -> None:
        with self._database.transaction() as responses:
            responses.execute("DELETE FROM responses WHERE used <= ?", (self._expired(),))

    def _expired(self) -> float:
        return self._clock() - self._bounds.seconds

    def _drop_old(self, responses: sqlite3.Connection, owner: str) -> None:
        """Remove what has expired, and what was not used for longest until the bounds are kept."""
        responses.execute("DELETE FROM responses WHERE owner = ? AND used <= ?", (owner, self._expired()))
        total = "SELECT count(*), total(size) FROM responses WHERE owner = ?"
        count, size = responses.execute(total, (owner,)).fetchone()
        while count > self._bounds.owner_count or size > self._bounds.owner_bytes:
            count, size = count - 1, size - _drop_oldest(responses, owner)
        if self._max_bytes is not None:
            ((size,),) = responses.execute("SELECT total(size) FROM responses")
            while size > self._max_bytes:
                largest = "SELECT owner FROM responses GROUP BY owner ORDER BY sum(size) DESC, min(used) LIMIT 1"
                size -= _drop_oldest(responses, *responses.execute(largest).fetchone())


def _drop_oldest(responses: sqlite3.Connection, owner: str) -> int:
    """Remove what an owner has not used for longest; return its bytes."""
    oldest = "SELECT rowid, size FROM responses WHERE owner = ? ORDER BY used, rowid LIMIT 1"
    number, size = responses.execute(oldest, (owner,)).fetchone()
    responses.execute("DELETE FROM responses WHERE rowid = ?", (number,))
    return int(size)


@contextmanager
def _logged_failures() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.error("stored responses cannot be read: %s", error)


def item_id(kind: str, response_id: str, number: int) -> str:
    """Return an id for an item of a response, or of its input, that leads to the response."""
    return f"{kind}_{response_id.removeprefix('resp_')}_{number:x}"


def response_of_item(text: str) -> str | None:
    """Return the response that an item is of; None: the id is not one of ours."""
    found = _ITEM.fullmatch(text)
    return f"resp_{found[1]}" if found else None
