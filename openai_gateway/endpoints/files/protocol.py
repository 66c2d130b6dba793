"""Bodies and responses of ``/v1/files`` (platform.openai.com/docs/api-reference/files)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel

from openai_gateway.batches.files import SECONDS_KEPT
from openai_gateway.errors import ApiError

LEAST_SECONDS = 3600
AfterId = Annotated[str | None, Query(description="the id of the last one that is known", max_length=64)]
Order = Literal["asc", "desc"]

FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": LEAST_SECONDS,
                            "maximum": SECONDS_KEPT,
                        },
                    },
                }
            }
        },
    }
}
"""What the OpenAPI document says of the form, which FastAPI does not read."""


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """Some of a list."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    """Response of ``DELETE /v1/files/{id}``."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def page_of(items: Sequence[Any], after: str | None, limit: int) -> dict[str, Any]:
    """Return a page of things with ids, models or dictionaries: this many, those after the one called `after`."""
    ids = [item["id"] if isinstance(item, dict) else item.id for item in items]
    if after is not None and after not in ids:
        raise ApiError(400, f"after must be the id of one in the list, got {after}", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    some = items[begin : begin + limit]
    return {
        "data": [item if isinstance(item, dict) else item.model_dump() for item in some],
        "first_id": ids[begin] if some else None,
        "last_id": ids[begin + len(some) - 1] if some else None,
        "has_more": begin + limit < len(items),
    }


def checked_purpose(fields: Mapping[str, str]) -> None:
    """Refuse a purpose for which files are not kept."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise ApiError(400, "purpose is required", param="purpose", code="missing_required_parameter")
    if purpose != "batch":
        message = f"purpose must be batch, got {purpose[:60]!r}: files are kept for batches alone."
        raise ApiError(400, message, param="purpose", code="invalid_value")


def seconds_kept(fields: Mapping[str, str]) -> int:
    """Return how long a file is to be kept."""
    anchor, seconds = (fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return SECONDS_KEPT
    if anchor != "created_at":
        raise ApiError(400, "expires_after.anchor must be created_at", param="expires_after.anchor")
    is_number = seconds is not None and seconds.isascii() and seconds.isdigit() and len(seconds) < 9
    if seconds is None or not is_number or not LEAST_SECONDS <= int(seconds) <= SECONDS_KEPT:
        message = f"expires_after.seconds must be in {LEAST_SECONDS}..{SECONDS_KEPT}, got {(seconds or 'nothing')[:60]}"
        raise ApiError(400, message, param="expires_after.seconds")
    return int(seconds)
