"""Members of a request body that are fields of the table (`lmdeploy.messages.GenerationConfig`), with its ranges."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, create_model

from lmdeploy.fields.rows import MAX_INT32, Kind, Row
from lmdeploy.serve.request import FIELDS
from openai_gateway.protocol.fields import Strict, Text

OF_EVERY_BODY = tuple(name for name, row in FIELDS.items() if row.is_in_bodies)
"""Names of the fields that every body has which asks for a response."""


def body_member(row: Row) -> Any:
    """Return the pydantic type of a field."""
    match row.kind:
        case Kind.FLAG:
            return bool
        case Kind.WHOLE:
            return Annotated[int, Field(ge=row.low, le=MAX_INT32 if row.high is None else row.high)]
        case Kind.NUMBER:
            return Annotated[float, Field(ge=row.low, gt=row.above, le=row.high)]
        case Kind.TEXT:
            return Annotated[Text, Field(max_length=row.max_bytes)]
        case Kind.TEXTS:
            return Annotated[
                list[Annotated[Text, Field(max_length=row.max_bytes)]], Field(max_length=row.max_items, fail_fast=True)
            ]
        case Kind.TOKENS:
            token = Annotated[int, Field(ge=0, le=MAX_INT32)]
            return Annotated[list[token], Field(max_length=row.max_items, fail_fast=True)]
    raise TypeError(f"{row.name}: a {row.kind.value} is no plain member of a body")


def body_of(name: str, base: type[Strict], fields: tuple[str, ...]) -> Any:
    """Return a model with this many fields of the table, each of them null by default."""
    members: dict[str, Any] = {
        field: (body_member(FIELDS[field]) | None, Field(None, description=FIELDS[field].sentence)) for field in fields
    }
    return create_model(name, __base__=base, **members)
