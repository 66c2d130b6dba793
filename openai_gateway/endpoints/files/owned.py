"""What a caller may see of files and batches, and how failures of keeping them are reported."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, Request

from openai_gateway.batches.files import FileObject, QuotaError
from openai_gateway.batches.records import Record
from openai_gateway.batches.store import Owned
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.middleware.api_keys import key_of

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
    if (found := owned.files.get(file_id)) is None:
        raise ApiError(status, f"There is no file `{file_id[:_SHOWN]}`.", param=param, code="file_not_found")
    return found


def batch_of(owned: Owned, batch_id: str) -> Record:
    """Return a batch of the caller's; another's is as if it were not there."""
    if (found := owned.batches.get(batch_id)) is None:
        raise ApiError(404, f"There is no batch `{batch_id[:_SHOWN]}`.", code="batch_not_found")
    return found


@contextmanager
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
