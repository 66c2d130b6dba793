"""Request members derived from the field table (`lmdeploy.messages.GenerationConfig`), with its ranges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from lmdeploy.fields.field import MAX_INT32, FieldInfo, Kind
from lmdeploy.serve.request import FIELDS
from openai_gateway.protocol.fields import FieldError, Strict, Text

OF_EVERY_BODY = tuple(name for name, info in FIELDS.items() if info.is_in_bodies)
"""Names of the fields that every body has which asks for a response."""


def body_member(info: FieldInfo) -> Any:
    """Return the pydantic type of a field."""
    match info.kind:
        case Kind.BOOLEAN:
            return bool
        case Kind.INTEGER:
            return Annotated[int, Field(ge=info.low, le=MAX_INT32 if info.high is None else info.high)]
        case Kind.NUMBER:
            return Annotated[float, Field(ge=info.low, gt=info.above, le=info.high)]
        case Kind.STRING if info.choices:
            return Literal[info.choices]
        case Kind.STRING:
            return Annotated[Text, Field(max_length=info.max_bytes)]
        case Kind.STRINGS:
            return Annotated[
                list[Annotated[Text, Field(max_length=info.max_bytes)]],
                Field(max_length=info.max_items, fail_fast=True),
            ]
        case Kind.TOKENS:
            token = Annotated[int, Field(ge=0, le=MAX_INT32)]
            return Annotated[list[token], Field(max_length=info.max_items, fail_fast=True)]
    raise TypeError(f"{info.name}: a {info.kind.value} cannot be a plain member of a body")


def body_of(name: str, base: type[Strict], fields: tuple[str, ...]) -> Any:
    """Return a model with these fields of the table, each under all of its names and null by default."""
    members: dict[str, Any] = {
        spelling: (body_member(info) | None, Field(None, description=info.description))
        for info in map(FIELDS.__getitem__, fields)
        for spelling in (info.name, *info.also)
    }
    return create_model(name, __base__=base, **members)


def given(body: Strict, name: str) -> Any:
    """Return the value of a field of the table, under whichever of its names a body has it; None: under none.

    Raises `FieldError` if it has several, with different values.
    """
    values = {spelling: getattr(body, spelling) for spelling in (name, *FIELDS[name].also)}
    named = {spelling: value for spelling, value in values.items() if value is not None}
    if len(set(map(repr, named.values()))) > 1:
        raise FieldError(next(reversed(named)), f"{' and '.join(named)} must be equal where both are given")
    return next(iter(named.values()), None)
