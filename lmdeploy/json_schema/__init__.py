"""Grammars of JSON Schemas (2020-12), or the path of the keyword that is not enforced.

A schema is worked out to a union of sets of values of one type each (`expansion`), these are written as plans of what a
grammar can say (`plans`), and those as rules (`rules`), every text of which the schema allows. What cannot be written
so is refused.
"""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from typing import Any

from lmdeploy.json_schema.errors import SchemaError
from lmdeploy.json_schema.rules import JSON, LOOSE_JSON, Rules, Syntax

MAX_BYTES = 65_536
"""Of a schema, and of any format."""

_MAX_DROPPED = 64  # keywords that `relaxed` leaves out

__all__ = ["JSON", "LOOSE_JSON", "MAX_BYTES", "Rules", "SchemaError", "Syntax", "grammar_of", "relaxed", "rules_of"]


def rules_of(schema: Any, syntax: Syntax = JSON) -> Rules:
    """Return the writer of a schema's grammar; raise `SchemaError` where it is none, not enforced, or too large."""
    text = _text_of(schema)
    return Rules(json.loads(text), len(text), syntax)


def grammar_of(schema: Any, syntax: Syntax = JSON) -> str:
    """Return the grammar (EBNF) of the values that a schema allows; errors as of `rules_of`."""
    return _grammar_of(_text_of(schema), syntax)


def _text_of(schema: Any) -> str:
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except ValueError:
        raise SchemaError("", "must not be nested without end") from None
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise SchemaError("", f"must be at most {MAX_BYTES} bytes long")
    return text


@lru_cache(maxsize=128)
def _grammar_of(text: str, syntax: Syntax) -> str:
    return Rules(json.loads(text), len(text), syntax).grammar()


def relaxed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the keywords that are not enforced; of one that is none, any object."""
    left = copy.deepcopy(schema)
    for _ in range(_MAX_DROPPED):
        try:
            grammar_of(left, LOOSE_JSON)
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
