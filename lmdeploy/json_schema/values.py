"""JSON values as the standard compares them: 1 and 1.0 are equal, 1 and true are not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

LARGEST = 2**53
"""The grammar program reads numbers as doubles: larger integers are distinguished no more."""

Key = tuple[Any, ...]


def is_number(value: object) -> bool:
    """Return whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Return whether a value is a number that JSON can spell."""
    return is_number(value) and not (isinstance(value, float) and not math.isfinite(value))


def exact(value: Any) -> Fraction:
    """Return the number that a JSON text spells; of a float, its shortest decimal."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def key_of(value: Any) -> Key:
    """Return a key that is equal for equal values."""
    if isinstance(value, dict):
        return ("object", *sorted((name, key_of(member)) for name, member in value.items()))
    if isinstance(value, list):
        return ("array", *map(key_of, value))
    if is_number(value):
        return ("number", exact(value))
    return (type(value).__name__, value)


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the values, equal ones once."""
    return list({key_of(value): value for value in values}.values())


def unspeakable(value: Any) -> str | None:
    """Return why a value cannot be written as it is; None: it can."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return next((why for part in parts if (why := unspeakable(part))), None)
    if is_number(value) and not is_finite(value):
        return "must not hold infinity or NaN"
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"must not hold integers beyond 2^53, got {str(value)[:30]}"
    return None
