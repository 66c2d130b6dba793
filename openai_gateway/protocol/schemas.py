"""JSON schemas in bodies: enforced in full, or refused with the path of the keyword that is not."""

from __future__ import annotations

from typing import Any

from lmdeploy.json_schema import SchemaError, enforceable, enforceable_format
from openai_gateway.protocol.fields import FieldError


def enforced_format(field: str, response_format: dict[str, Any]) -> dict[str, Any]:
    """Return the ``response_format`` that the engine is given.

    Parameters
    ----------
    field
        What holds the schema or the expression, for the error.

    Raises
    ------
    FieldError
        Something of it is not enforced.
    """
    try:
        return enforceable_format(response_format)
    except SchemaError as error:
        raise _refusal(field, error) from None


def require_enforced(field: str, schema: dict[str, Any]) -> None:
    """Refuse a schema that is not enforced, in a field of that name.

    Raises
    ------
    FieldError
        A keyword is not enforced.
    """
    try:
        enforceable(schema)
    except SchemaError as error:
        raise _refusal(field, error) from None


def _refusal(field: str, error: SchemaError) -> FieldError:
    return FieldError(field, f"{field} is refused at #{error.pointer}: {error.reason}")
