"""``/v1/files``: upload, list, look at, read and delete what belongs to the caller's API key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect

from openai_gateway.batches.files import FileObject, Upload
from openai_gateway.batches.store import Owned
from openai_gateway.endpoints.files.form import FileForm
from openai_gateway.endpoints.files.owned import OwnedDependency, file_of, reported_failures
from openai_gateway.endpoints.files.protocol import (
    FORM,
    AfterId,
    Deleted,
    Order,
    Page,
    checked_purpose,
    page_of,
    seconds_kept,
)
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.cancellation import ClientDisconnected
from openai_gateway.registry import FILES

router = APIRouter()

_PIECE = 256 * 1024  # bytes that go to the disk at a time
_MAX_PAGE = 10_000


@router.post(FILES, openapi_extra=FORM)
async def create_file(request: Request, owned: OwnedDependency, gateway: GatewayDependency) -> FileObject:
    """Keep a file for batches: JSONL, a request a line."""
    form = FileForm(request.headers.get("content-type", ""), owned.files.upload, gateway.settings.max_file_bytes)
    body = request.stream()
    try:
        with reported_failures():
            piece = bytearray()
            async for chunk in body:
                piece += chunk
                if len(piece) >= _PIECE:
                    await asyncio.to_thread(form.feed, bytes(piece))
                    piece.clear()
            return await asyncio.to_thread(_finished, form, bytes(piece))
    except ClientDisconnect:
        raise ClientDisconnected from None
    except ApiError:
        await _drop(body)
        raise
    finally:
        if form.upload is not None:
            await asyncio.to_thread(form.upload.drop)


async def _drop(body: AsyncIterator[bytes]) -> None:
    """Read what is left of a body, so that its client reads our response."""
    with contextlib.suppress(ClientDisconnect):
        async for _ in body:
            continue


def _finished(form: FileForm, rest: bytes) -> FileObject:
    form.feed(rest)
    upload: Upload = form.finish()
    checked_purpose(form.fields)
    seconds = seconds_kept(form.fields)
    if upload.size == 0:
        raise ApiError(400, "The file must not be empty.", param="file")
    return upload.finish(form.filename, "batch", seconds)


@router.get(FILES)
async def list_files(
    owned: OwnedDependency,
    purpose: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE,
    order: Order = "desc",
    after: AfterId = None,
) -> Page[FileObject]:
    """List the files, the newest first unless `order` says otherwise."""
    files = [file for file in await asyncio.to_thread(owned.files.all) if purpose in (None, file.purpose)]
    return Page[FileObject].model_validate(page_of(files if order == "desc" else files[::-1], after, limit))


@router.get(f"{FILES}/{{file_id}}")
async def retrieve_file(file_id: str, owned: OwnedDependency) -> FileObject:
    """Return a file."""
    return await asyncio.to_thread(file_of, owned, file_id)


@router.get(f"{FILES}/{{file_id}}/content", response_class=FileResponse)
async def retrieve_file_content(file_id: str, owned: OwnedDependency) -> FileResponse:
    """Return what is in a file."""
    found = await asyncio.to_thread(file_of, owned, file_id)
    return FileResponse(
        owned.files.content(file_id),
        media_type="application/octet-stream",
        filename=found.filename,
        headers={"x-content-type-options": "nosniff"},
    )


@router.delete(f"{FILES}/{{file_id}}")
async def delete_file(file_id: str, owned: OwnedDependency) -> Deleted:
    """Delete a file that no open batch reads."""
    with reported_failures():
        await asyncio.to_thread(_delete, owned, file_id)
    return Deleted(id=file_id)


def _delete(owned: Owned, file_id: str) -> Literal[True]:
    file_of(owned, file_id)
    if batch_id := owned.batches.is_input(file_id):
        raise ApiError(409, f"The batch {batch_id} reads this file; cancel it first.", code="file_in_use")
    owned.files.delete(file_id)
    return True
