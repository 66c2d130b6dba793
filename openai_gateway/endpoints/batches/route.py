"""``/v1/batches``: create, list, retrieve and cancel batches of the caller's API key."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query

from openai_gateway.batches.records import ENDED, BatchObject, Record
from openai_gateway.batches.store import Owned
from openai_gateway.endpoints.batches.protocol import BatchRequest
from openai_gateway.endpoints.files.protocol import AfterId, Page, page_of
from openai_gateway.endpoints.files.route import OwnedDependency, file_of, reported_failures
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute

router = APIRouter(route_class=BoundedRoute)

_SHOWN = 64  # characters of an id


@router.post("/v1/batches")
async def create_batch(body: BatchRequest, owned: OwnedDependency, gateway: GatewayDependency) -> BatchObject:
    """Answer the requests of a file, after those of other callers."""
    with reported_failures():
        record = await asyncio.to_thread(_created, owned, body)
    if gateway.batch_runner is not None:
        gateway.batch_runner.look()
    return record


def _created(owned: Owned, body: BatchRequest) -> Record:
    file = file_of(owned, body.input_file_id, 400, "input_file_id")
    if file.purpose != "batch":
        raise ApiError(400, "input_file_id must be of a file with the purpose batch.", param="input_file_id")
    return owned.add_batch(
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        hours=body.hours,
        metadata=body.metadata,
        results_seconds=body.results_seconds,
    )


@router.get("/v1/batches")
async def list_batches(
    owned: OwnedDependency, limit: Annotated[int, Query(ge=1, le=100)] = 20, after: AfterId = None
) -> Page[BatchObject]:
    """List the batches, the newest first."""
    return Page[BatchObject].model_validate(page_of(await asyncio.to_thread(owned.batches), after, limit))


@router.get("/v1/batches/{batch_id}")
async def retrieve_batch(batch_id: str, owned: OwnedDependency) -> BatchObject:
    """Return a batch."""
    return await asyncio.to_thread(_batch_of, owned, batch_id)


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(batch_id: str, owned: OwnedDependency, gateway: GatewayDependency) -> BatchObject:
    """End a batch; what has been answered by then is in its files."""
    record = await asyncio.to_thread(_batch_of, owned, batch_id)
    if record.status in ENDED:
        message = f"The batch {batch_id} is {record.status}; there is nothing to cancel."
        raise ApiError(409, message, code="batch_has_ended")
    with reported_failures():
        await asyncio.to_thread(owned.cancel, batch_id)
    if gateway.batch_runner is not None:
        gateway.batch_runner.look()
    return await asyncio.to_thread(_batch_of, owned, batch_id)


def _batch_of(owned: Owned, batch_id: str) -> Record:
    """Return a batch of the caller's; another's is as if it were not there."""
    if (found := owned.batch(batch_id)) is None:
        raise ApiError(404, f"There is no batch `{batch_id[:_SHOWN]}`.", code="batch_not_found")
    return found
