"""From a JSON Schema (2020-12) to one that the grammar engine really keeps to, or to an error with the keyword's path.

xgrammar compiles schemas, but ignores keywords, alone or next to others. Here a schema is worked out to a union of sets
of values of one type each (`expansion`), these are written as plans of what the engine can do (`plans`), and those as a
schema (`output`), every value of which the given schema allows too. What cannot be written so is refused.
"""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from typing import Any

from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.expansion import Expansion
from lmdeploy.json_schema.expressions import body_of_rule, full_match, without
from lmdeploy.json_schema.output import Output

MAX_BYTES = 65_536
"""Of a schema and of what becomes of it, and of any format."""

_MAX_DROPPED = 64  # keywords that `relaxed` leaves out

__all__ = ["MAX_BYTES", "SchemaError", "body_of_rule", "enforceable", "full_match", "relaxed", "without"]


def enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that the engine keeps to, all of whose values `schema` allows.

    Raises
    ------
    SchemaError
        It is none, it is not enforced, or it is too large.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except ValueError:
        raise SchemaError("", "must not be nested without end") from None
    found = _enforceable(text)
    if isinstance(found, SchemaError):
        raise SchemaError(found.pointer, found.reason)
    return found


@lru_cache(maxsize=128)
def _enforceable(text: str) -> dict[str, Any] | SchemaError:
    if len(text.encode()) > MAX_BYTES:
        return SchemaError("", f"must be at most {MAX_BYTES} bytes long")
    expansion = Expansion(Budget(len(text)))
    output = Output(expansion)
    try:
        whole = output.of(expansion.document(json.loads(text)))
    except SchemaError as error:
        return error
    if len(json.dumps(whole)) > MAX_BYTES:
        return SchemaError("", f"takes more than {MAX_BYTES} bytes with its alternatives written out")
    return whole


def relaxed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the keywords that are not enforced; of one that is none, any object."""
    left = copy.deepcopy(schema)
    for _ in range(_MAX_DROPPED):
        try:
            enforceable(left)
        except SchemaError as error:
            if not _drop(left, error.pointer):
                break
        else:
            return left
    return {"type": "object"}


def _drop(schema: Any, pointer: str) -> bool:
    """Take away what a pointer points to; return whether there was such a thing."""
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]] or [""]
    for part in path:
        schema = schema[int(part)] if isinstance(schema, list) else schema.get(part)
    if not isinstance(schema, dict) or last not in schema:
        return False
    del schema[last]
    return True
