"""Types of bare-text arguments: which JSON they are, by the function's schema.

A schema is what `Function.full_schema` returns. Where it leaves the type open, vLLM's parsers are followed: a string
is the text as it is, anything else is read as JSON and then as Python, and what is neither is a string.
"""

from __future__ import annotations

import ast
import json
from typing import NoReturn

from lmdeploy.templates.schema_types import json_type
from openai_gateway.tools.json_call import as_json
from openai_gateway.tools.json_prefix import JsonObjectReader

_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def value_text(text: str, types: tuple[str, ...]) -> str:
    """Return the JSON text of an argument that was written as bare text.

    ``types``: what it may be; none: anything but a string, if it reads as such.
    """
    stripped = text.strip()
    word = _WORDS.get(stripped.lower())
    if word == "null" and "null" in types:
        return word
    first = next((kind for kind in types if kind != "null"), None)
    if first == "string":
        return _string(text)
    found = _read(stripped, word)
    if found is not None and (not types or _fits(found[1], types)):
        return found[0]
    return _string(text)


def _read(text: str, word: str | None) -> tuple[str, str] | None:
    """Return the JSON text, and the type, of a value that is JSON or a Python literal; None: it is neither."""
    if word is not None:
        return word, "null" if word == "null" else "boolean"
    try:
        value = json.loads(text, parse_constant=_reject)
    except (ValueError, RecursionError):
        return _read_python(text)
    reader = JsonObjectReader()
    reader.read(f'{{"":{text}}}')
    return (text, json_type(value)) if reader.is_complete else None  # else it is nested too deep


def _read_python(text: str) -> tuple[str, str] | None:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(value, (dict, list, tuple, int, float)):
        return None
    written = as_json(value)
    return None if written is None else (written, json_type(list(value) if isinstance(value, tuple) else value))


def _fits(kind: str, types: tuple[str, ...]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
