"""Conversation of stored responses, within the bounds of a request body."""

from __future__ import annotations

import asyncio
from typing import Any

from openai_gateway.errors import ApiError
from openai_gateway.parsing import check_size
from openai_gateway.protocol.fields import MAX_ITEMS
from openai_gateway.stored_responses.record import ResponseStore, StoredResponse, response_of_item

_SHOWN = 64  # characters of an id
_SHORT = 128 * 1024  # bytes that are decoded at once, in a millisecond
_PREVIOUS = "previous_response_id"


async def stored_response(store: ResponseStore, key: str | None, response_id: str) -> StoredResponse:
    """Return a response of the caller's; another's is as if it were not there.

    Raises `ApiError` if there is none.
    """
    if (text := await store.get(key, response_id)) is None:
        raise ApiError(404, f"Response with id '{response_id[:_SHOWN]}' not found.", code="response_not_found")
    return await _decoded(text)


class References:
    """The stored responses that one request refers to, each read once."""

    def __init__(self, store: ResponseStore, key: str | None, max_bytes: int) -> None:
        self._store = store
        self._key = key
        self._max_bytes = max_bytes  # of all of them together
        self._texts: dict[str, bytes] = {}
        self._read: dict[str, StoredResponse] = {}

    async def conversation(self, response_id: str) -> list[dict[str, Any]]:
        """Return all items up to the end of a response, those of the responses that it continues first.

        Raises `ApiError` if one of them is not there any more, or they are too many.
        """
        found: list[StoredResponse] = []
        next_id: str | None = response_id
        while next_id is not None:
            if (stored := await self._get(next_id)) is None:
                message = f"Previous response with id '{next_id[:_SHOWN]}' not found."
                raise ApiError(400, message, param=_PREVIOUS, code="previous_response_not_found")
            found.append(stored)
            next_id = stored.previous
        return [item for stored in reversed(found) for item in stored.items]

    async def item(self, item_id: str) -> dict[str, Any]:
        """Return an item of a stored response, or of its input; raise `ApiError` if there is none."""
        response_id = response_of_item(item_id)
        stored = await self._get(response_id) if response_id else None
        for item in stored.items if stored else ():
            if item.get("id") == item_id and item["type"] != "item_reference":
                return item
        message = (
            f"Item with id '{item_id[:_SHOWN]}' not found. Items are kept, for a time, of responses whose `store` is "
            "not false; send the item itself instead."
        )
        raise ApiError(404, message, param="input", code="item_not_found")

    def require_bounds(self, items: int) -> None:
        """Refuse a conversation that no body could bring along.

        Raises `ApiError` if it has too many items, or too many values.
        """
        if items > MAX_ITEMS:
            message = f"The conversation has more than {MAX_ITEMS} items; begin a new one."
            raise ApiError(400, message, param=_PREVIOUS, code="too_many_values")
        check_size(b"".join(self._texts.values()))

    async def _get(self, response_id: str) -> StoredResponse | None:
        if response_id in self._read:
            return self._read[response_id]
        text = await self._store.get(self._key, response_id)
        if text is None:
            return None
        self._texts[response_id] = text
        if sum(map(len, self._texts.values())) > self._max_bytes:
            message = f"The stored conversation is longer than {self._max_bytes} bytes; begin a new one."
            raise ApiError(400, message, param=_PREVIOUS, code="too_many_values")
        self._read[response_id] = await _decoded(text)
        return self._read[response_id]


async def _decoded(text: bytes) -> StoredResponse:
    if len(text) <= _SHORT:
        return StoredResponse.decoded(text)
    return await asyncio.to_thread(StoredResponse.decoded, text)
