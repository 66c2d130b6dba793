"""From a ``response_format``, as any caller gives it, to the one that the grammar program hands to xgrammar.

Schemas become schemas that xgrammar keeps to (`lmdeploy.json_schema`), expressions become plain characters, classes and
counts. This runs where formats are compiled, in a process whose time and memory are limited.
"""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

from lmdeploy.json_schema import SchemaError, enforceable, full_match
from lmdeploy.json_schema.output import without_lengths
from lmdeploy.json_schema.patterns import PatternError
from lmdeploy.json_schema.places import shown


class RefusedFormatError(ValueError):
    """A format that is none, or that the engine does not keep to."""


def translated(response_format: str) -> str:
    """Return the JSON text of a format for xgrammar, from the user's; raise `RefusedFormatError`."""
    try:
        given = json.loads(response_format)
        return json.dumps(_translated(given) if isinstance(given, dict) else given)
    except SchemaError as error:
        raise RefusedFormatError(f"refused at {error}") from None
    except RecursionError:
        raise RefusedFormatError("it is nested too deeply") from None


def _translated(given: dict[str, Any]) -> dict[str, Any]:
    match given:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return given | {"json_schema": {"schema": _schema(schema)}}
        case {"type": "json_schema", "json_schema": schema}:
            return given | {"json_schema": {"schema": _schema(schema)}}
        case {"type": "regex_schema", "regex_schema": str(pattern)}:
            return given | {"regex_schema": _expression(pattern)}
        case {"type": "lark", "lark": str(grammar)}:
            return given | {"lark": _lark(grammar)}
        case {"type": "structural_tag", "structural_tag": tag}:
            return given | {"structural_tag": _tag(tag)}
    return given


def _schema(schema: Any) -> Any:
    return enforceable(schema) if isinstance(schema, dict) else schema


def _expression(pattern: str) -> str:
    try:
        return full_match(pattern)
    except PatternError as error:
        raise RefusedFormatError(f"the expression {shown(pattern)} {error}") from None


def _tag(value: Any) -> Any:
    """Return a part of a structural tag."""
    match value:
        case {"json_schema": schema, "is_enforced": True}:
            rest = {name: each for name, each in value.items() if name != "is_enforced"}
            return rest | {"json_schema": without_lengths(schema)}
        case {"json_schema": schema}:
            return value | {"json_schema": without_lengths(_schema(schema))}
        case {"type": "regex", "pattern": str(pattern)}:
            return value | {"pattern": _expression(pattern)}
        case dict():
            return {name: _tag(each) for name, each in value.items()}
        case list():
            return [_tag(each) for each in value]
    return value


# Comments, strings and expressions of a Lark grammar, in which the text %json means nothing; and %json itself.
_LARK = re.compile(r'(?://|#)[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\])+/|%json\b\s*')


def _lark(grammar: str) -> str:
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
                enforced = json.dumps(_enforced_at(grammar, found.start(), schema), ensure_ascii=False)
                rules.append(f"\n{rule}: %json {enforced}")
                blank = re.sub(r"[^\n]", " ", grammar[found.start() + len(rule) + 1 : end - 1])
                parts[-1] = f"{grammar[start : found.start()]}({rule}{blank})"
                at = end
    return "".join([*parts, grammar[at:], *rules])


def _enforced_at(grammar: str, at: int, schema: dict[str, Any]) -> dict[str, Any]:
    try:
        return enforceable(schema)
    except SchemaError as error:
        line, column = grammar.count("\n", 0, at) + 1, at - grammar.rfind("\n", 0, at)
        raise SchemaError(error.pointer, f"{error.reason} (line {line}, column {column} of the grammar)") from None
