"""Bodies and responses of ``/v1/files`` (platform.openai.com/docs/api-reference/files)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from openai_gateway.batches.records import SECONDS_KEPT
from openai_gateway.errors import ApiError
from openai_gateway.protocol.fields import Strict

AfterId = Annotated[str | None, Query(description="the id of the last one that is known", max_length=64)]
Order = Literal["asc", "desc"]


class ExpiresAfter(Strict):
    """How long a file is kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=SECONDS_KEPT)]


class FileFields(Strict):
    """The short fields of the form."""

    purpose: Literal["batch"]
    expires_after: ExpiresAfter | None = None

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> FileFields:
        """Return the fields of a form, where those of objects are called ``object[field]``."""
        nested: dict[str, Any] = {}
        for name, value in fields.items():
            outer, bracket, inner = name.partition("[")
            if not bracket:
                nested[name] = value
            elif isinstance(members := nested.setdefault(outer, {}), dict):  # else the object is a text, and refused
                members[inner.removesuffix("]")] = value
        try:
            return cls.model_validate_strings(nested, strict=False)
        except ValidationError as error:
            raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in error.errors()]) from None


_PROPERTIES = {
    "file": {"type": "string", "format": "binary"},
    "purpose": {"type": "string", "enum": ["batch"]},
    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": SECONDS_KEPT},
}
_SCHEMA = {"type": "object", "required": ["file", "purpose"], "properties": _PROPERTIES}
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}}
"""OpenAPI schema of the form, which FastAPI does not read."""


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
