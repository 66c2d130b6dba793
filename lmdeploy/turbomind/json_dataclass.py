"""Dataclasses out of JSON: nested ones from objects, tuples from lists."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def from_fields(cls: type[T], fields: Mapping[str, Any]) -> T:
    """Return the dataclass ``cls`` whose ``dataclasses.asdict``, written and read as JSON, is ``fields``.

    Raises
    ------
    TypeError
        If a field is missing, unknown, or an object where none belongs.
    """
    types_of_fields = typing.get_type_hints(cls)
    return cls(**{name: _value(types_of_fields.get(name, Any), value) for name, value in fields.items()})


def _value(kind: Any, value: Any) -> Any:
    if isinstance(kind, types.UnionType):
        kind = next(choice for choice in kind.__args__ if choice is not types.NoneType)
    if value is None:
        return None
    if typing.get_origin(kind) is tuple:
        return tuple(_value(kind.__args__[0], item) for item in value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise TypeError(f"{kind.__name__} must be an object, got {value!r}")
        return from_fields(kind, value)
    return value
