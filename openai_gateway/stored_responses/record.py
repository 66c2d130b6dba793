"""A response as it is kept, what keeps them, and ids that lead to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

DAYS_KEPT = 30
SECONDS_KEPT = DAYS_KEPT * 24 * 3600
_RESPONSE = re.compile(r"resp_[0-9a-f]{32}")
_ITEM = re.compile(r"[a-z]{2,8}_([0-9a-f]{32})_[0-9a-f]{1,8}")


@dataclass(frozen=True)
class Bounds:
    """What is kept at most.

    Attributes
    ----------
    owner_bytes, owner_count
        Of all responses of one API key.
    seconds
        After a response was last used.
    """

    owner_bytes: int
    owner_count: int
    seconds: int = SECONDS_KEPT


@dataclass(frozen=True)
class StoredResponse:
    """A response and what it was made from.

    Attributes
    ----------
    response
        As callers get it.
    input
        The items that were new in its request, each with an id.
    previous
        The response that it continues; None: none.
    """

    response: dict[str, Any]
    input: list[dict[str, Any]]
    previous: str | None = None

    @property
    def id(self) -> str:
        """The response's."""
        response_id: str = self.response["id"]
        return response_id

    @property
    def items(self) -> list[dict[str, Any]]:
        """What it adds to a conversation."""
        output: list[dict[str, Any]] = self.response["output"]
        return [*self.input, *output]

    def encoded(self) -> bytes:
        """Return it as JSON text."""
        return orjson.dumps({"response": self.response, "input": self.input, "previous": self.previous})

    @classmethod
    def decoded(cls, text: bytes) -> StoredResponse:
        """Return what `encoded` made JSON text of."""
        return cls(**orjson.loads(text))


class ResponseStore(Protocol):
    """Keeps responses; those of one API key are not there for another."""

    async def put(self, key: str | None, stored: StoredResponse) -> bool:
        """Keep a response, in place of the ones that were not used for longest; False: it is too large."""

    async def get(self, key: str | None, response_id: str) -> bytes | None:
        """Return a response, encoded, which is used by that; None: there is none of this id any more."""

    async def delete(self, key: str | None, response_id: str) -> bool:
        """Forget a response; False: there was none."""


def is_response_id(text: str) -> bool:
    """Return whether a response may be called so."""
    return _RESPONSE.fullmatch(text) is not None


def item_id(kind: str, response_id: str, number: int) -> str:
    """Return an id for an item of a response, or of its input, that leads to the response."""
    return f"{kind}_{response_id.removeprefix('resp_')}_{number:x}"


def response_of_item(text: str) -> str | None:
    """Return the response that an item is of; None: the id is not one of ours."""
    found = _ITEM.fullmatch(text)
    return f"resp_{found[1]}" if found else None
