"""Stored responses of ``/v1/responses``, read and written."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from openai_gateway.endpoints.responses.items import InputItem, InputMessage, ItemReference
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway
from openai_gateway.middleware.api_keys import key_of
from openai_gateway.middleware.internal_requests import is_internal
from openai_gateway.stored_responses.conversations import References
from openai_gateway.stored_responses.record import StoredResponse, item_id

logger = logging.getLogger(__name__)

_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


async def with_stored_items(body: ResponsesRequest, request: Request, gateway: Gateway) -> ResponsesRequest:
    """Return a body whose input has what it refers to: the conversation before it, and items by their ids.

    Raises `ApiError` if something is not there, or all of it is too long.
    """
    items = _items(body)
    if body.previous_response_id is None and not any(isinstance(item, ItemReference) for item in items):
        return body
    stored = References(gateway.responses, key_of(request.scope), gateway.settings.max_body_bytes)
    before = await stored.conversation(body.previous_response_id) if body.previous_response_id is not None else []
    stored.require_bounds(len(before) + len(items))
    together = []
    for item in [*_validated(before), *items]:
        if isinstance(item, ItemReference):
            together += _validated([await stored.item(item.id)])
        else:
            together.append(item)
    stored.require_bounds(len(together))
    return body.model_copy(update={"input": together})


class Storing:
    """Stores the response to a request once it is over, unless it is not to be."""

    def __init__(self, body: ResponsesRequest, request: Request, gateway: Gateway) -> None:
        self._body = body  # as it came
        self._key = key_of(request.scope)
        self._store = gateway.responses
        # Results of batches are kept in files; they would push out what callers continue.
        self.stores = body.store is True if is_internal(request.scope) else body.store is not False

    async def __call__(self, response: dict[str, Any]) -> None:
        """Store `response`, whose ``store`` says whether it is."""
        if not self.stores:
            return
        stored = await asyncio.to_thread(self._stored, response)
        try:
            response["store"] = await self._store.put(self._key, stored)
        except OSError as error:
            logger.error("a response could not be stored: %s", error)
            response["store"] = False

    def _stored(self, response: dict[str, Any]) -> StoredResponse:
        items = [item.model_dump(exclude_none=True) for item in _items(self._body)]
        named = [{"id": item_id("in", response["id"], number), **item} for number, item in enumerate(items)]
        return StoredResponse(response, named, self._body.previous_response_id)


def _items(body: ResponsesRequest) -> list[InputItem]:
    if isinstance(body.input, str):
        return [InputMessage(role="user", content=body.input)]
    return body.input


def _validated(items: list[dict[str, Any]]) -> list[InputItem]:
    try:
        return _ITEMS.validate_python(items)
    except ValidationError:  # of another version of this server
        message = "The stored response cannot be continued by this server; send the conversation again."
        raise ApiError(400, message, param="previous_response_id", code="unsupported_value") from None
