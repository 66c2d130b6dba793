"""From a JSON Schema (2020-12) to one that the grammar engine really keeps to, or to an error with the keyword's path.

xgrammar compiles schemas, but ignores keywords, alone or next to others. Here a schema is worked out to a union of sets
of values of one type each (`expansion`), these are written as plans of what the engine can do (`plans`), and those as a
schema (`output`), every value of which the given schema allows too. What cannot be written so is refused.
"""

from __future__ import annotations

import copy
import json
import re
from functools import lru_cache
from itertools import count
from typing import Any

from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.expansion import Expansion
from lmdeploy.json_schema.expressions import body_of_rule, full_match, without
from lmdeploy.json_schema.output import Output
from lmdeploy.json_schema.patterns import PatternError
from lmdeploy.json_schema.places import shown

MAX_BYTES = 65_536
"""Of a schema and of what becomes of it; as `backend_cpp/grammar/xgrammar.cc` has it."""

_MAX_DROPPED = 64  # keywords that `relaxed` leaves out

__all__ = ["MAX_BYTES", "SchemaError", "body_of_rule", "enforceable", "enforceable_format", "relaxed", "without"]


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


def enforceable_format(response_format: dict[str, Any]) -> dict[str, Any]:
    """Return a ``response_format`` that the engine keeps to: of its schemas and expressions, what becomes of them.

    Raises
    ------
    SchemaError
        It is not enforced; the pointer is from the root of the schema.
    """
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)} as named}:
            return response_format | {"json_schema": named | {"schema": enforceable(schema)}}
        case {"type": "json_schema", "json_schema": dict(schema)} if "schema" not in schema:
            return response_format | {"json_schema": {"schema": enforceable(schema)}}
        case {"type": "regex_schema", "regex_schema": str(pattern)}:
            try:
                return response_format | {"regex_schema": full_match(pattern)}
            except PatternError as error:
                raise SchemaError("", f"the expression {shown(pattern)} {error}") from None
        case {"type": "lark", "lark": str(grammar)}:
            return response_format | {"lark": _enforceable_lark(grammar)}
        case {"type": "structural_tag"}:
            return {name: _enforceable_tag(value) for name, value in response_format.items()}
    return response_format


def _enforceable_tag(value: Any) -> Any:
    """Return a part of a structural tag with its schemas as the engine keeps to them."""
    match value:
        case {"type": "json_schema", "json_schema": dict(schema)}:
            return value | {"json_schema": enforceable(schema)}
        case dict():
            return {name: _enforceable_tag(each) for name, each in value.items()}
        case list():
            return [_enforceable_tag(each) for each in value]
    return value


# Comments, strings and expressions of a Lark grammar, in which the text %json means nothing; and %json itself.
_LARK = re.compile(r'(?://|#)[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\])+/|%json\b\s*')


def _enforceable_lark(grammar: str) -> str:
    """Return a Lark grammar with the schemas after ``%json`` as the engine keeps to them.

    They go to its end as rules, so that the places of what else is wrong stay those of the user's text.
    """
    parts: list[str] = []
    rules: list[str] = []
    at = 0
    while found := _LARK.search(grammar, at):
        start, at = at, found.end()
        parts.append(grammar[start:at])
        if found[0].startswith("%json"):
            try:
                schema, end = json.JSONDecoder().raw_decode(grammar, at)
            except ValueError:  # its reader says what is wrong
                continue
            if isinstance(schema, dict):
                rule = next(name for n in count(len(rules)) if (name := f"json_{n}") not in grammar)
                enforced = json.dumps(_enforceable_at(grammar, found.start(), schema), ensure_ascii=False)
                rules.append(f"\n{rule}: %json {enforced}")
                blank = re.sub(r"[^\n]", " ", grammar[found.start() + len(rule) + 1 : end - 1])
                parts[-1] = f"{grammar[start : found.start()]}({rule}{blank})"
                at = end
    return "".join([*parts, grammar[at:], *rules])


def _enforceable_at(grammar: str, at: int, schema: dict[str, Any]) -> dict[str, Any]:
    try:
        return enforceable(schema)
    except SchemaError as error:
        line, column = grammar.count("\n", 0, at) + 1, at - grammar.rfind("\n", 0, at)
        raise SchemaError(error.pointer, f"{error.reason} (line {line}, column {column} of the grammar)") from None


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
