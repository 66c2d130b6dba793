"""``/v1/files``: upload, list, retrieve, download and delete files of the caller's API key."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect

from openai_gateway.batches.records import FileObject
from openai_gateway.batches.store import Owned, QuotaError
from openai_gateway.endpoints.files.form import FileForm
from openai_gateway.endpoints.files.protocol import FORM, AfterId, Deleted, Order, Page, page_of
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.cancellation import ClientDisconnected
from openai_gateway.middleware.api_keys import key_of
from openai_gateway.registry import FILES

router = APIRouter()

_PIECE = 256 * 1024  # bytes that go to the disk at a time
_MAX_PAGE = 10_000
_SHOWN = 64  # characters of an id


async def _owned(request: Request, gateway: GatewayDependency) -> Owned:
    if gateway.store is None:
        message = "This server keeps no files, and runs no batches; start it with --files-dir."
        raise ApiError(400, message, code="not_supported")
    return gateway.store.of(key_of(request.scope))


OwnedDependency = Annotated[Owned, Depends(_owned)]
"""The files and batches of the caller's API key."""


def file_of(owned: Owned, file_id: str, status: int = 404, param: str | None = None) -> FileObject:
    """Return a file of the caller's; another's is as if it were not there."""
    if (found := owned.file(file_id)) is None:
        raise ApiError(status, f"There is no file `{file_id[:_SHOWN]}`.", param=param, code="file_not_found")
    return found


@contextlib.contextmanager
def reported_failures() -> Iterator[None]:
    """Report quotas and a full disk to callers."""
    try:
        yield
    except QuotaError as error:
        raise ApiError(403, str(error), code="quota_exceeded") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ApiError(507, "The server's disk is full.", code="disk_full") from None
        raise


@router.post(FILES, openapi_extra=FORM)
async def create_file(request: Request, owned: OwnedDependency, gateway: GatewayDependency) -> FileObject:
    """Keep a file for batches: JSONL, a request a line."""
    form = FileForm(request.headers.get("content-type", ""), owned, gateway.settings.max_file_bytes)
    body = request.stream()
    try:
        with reported_failures():
            piece = bytearray()
            async for chunk in body:
                piece += chunk
                if len(piece) >= _PIECE:
                    await asyncio.to_thread(form.feed, bytes(piece))
                    piece.clear()
            await asyncio.to_thread(form.feed, bytes(piece))
            return await asyncio.to_thread(form.finish)
    except ClientDisconnect:
        raise ClientDisconnected from None
    except ApiError:
        with contextlib.suppress(ClientDisconnect):  # a client that has sent all reads our response
            async for _ in body:
                continue
        raise
    finally:
        await asyncio.to_thread(form.close)


@router.get(FILES)
async def list_files(
    owned: OwnedDependency,
    purpose: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _MAX_PAGE,
    order: Order = "desc",
    after: AfterId = None,
) -> Page[FileObject]:
    """List the files, the newest first unless `order` says otherwise."""
    files = [file for file in await asyncio.to_thread(owned.files) if purpose in (None, file.purpose)]
    return Page[FileObject].model_validate(page_of(files if order == "desc" else files[::-1], after, limit))


@router.get(f"{FILES}/{{file_id}}")
async def retrieve_file(file_id: str, owned: OwnedDependency) -> FileObject:
    """Return a file."""
    return await asyncio.to_thread(file_of, owned, file_id)


@router.get(f"{FILES}/{{file_id}}/content", response_class=FileResponse)
async def retrieve_file_content(file_id: str, owned: OwnedDependency) -> FileResponse:
    """Return the content of a file."""
    found = await asyncio.to_thread(file_of, owned, file_id)
    return FileResponse(
        owned.content(file_id),
        media_type="application/octet-stream",
        filename=found.filename,
        headers={"x-content-type-options": "nosniff"},
    )


@router.delete(f"{FILES}/{{file_id}}")
async def delete_file(file_id: str, owned: OwnedDependency) -> Deleted:
    """Delete a file that no open batch reads."""
    await asyncio.to_thread(file_of, owned, file_id)
    with reported_failures():
        batch_id = await asyncio.to_thread(owned.delete_file, file_id)
    if batch_id is not None:
        raise ApiError(409, f"The batch {batch_id} reads this file; cancel it first.", code="file_in_use")
    return Deleted(id=file_id)
