"""Translation of a ``response_format``, as any caller gives it, to the one that xgrammar reads.

Schemas (`lmdeploy.json_schema`) and expressions become grammars. This runs where formats are compiled, in a process
whose time and memory are limited.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from lmdeploy.grammars.texts import NOISE, GrammarText, InvalidFormatError, ebnf_text, lark_text
from lmdeploy.json_schema import JSON, LOOSE_JSON, MAX_BYTES, SchemaError, Syntax, grammar_of
from lmdeploy.json_schema.expressions import full_match
from lmdeploy.json_schema.nodes import shown
from lmdeploy.json_schema.patterns import PatternError

_TYPES = ("json_object", "json_schema", "regex_schema", "grammar", "lark", "structural_tag")


@dataclass(frozen=True, slots=True)
class Translation:
    """A text for xgrammar, and the user's grammar that it stands for, where it is one."""

    kind: str  # grammar, lark or structural_tag
    text: str
    grammar: GrammarText | None = None

    def explain(self, message: str) -> str:
        """Return a message about `text` as one about the user's format."""
        return self.grammar.explain(message) if self.grammar else NOISE.sub("", message).strip()


def translated(response_format: str) -> Translation:
    """Return the user's format (JSON) for xgrammar; raise `InvalidFormatError` where it is invalid or not enforced."""
    try:
        given = json.loads(response_format, parse_constant=_reject_constant)
        json.dumps(given, ensure_ascii=False).encode()
        return _translated(given)
    except UnicodeEncodeError as error:
        raise InvalidFormatError(f"it has half a surrogate pair, {shown(error.object[error.start])}") from None
    except InvalidFormatError:
        raise
    except SchemaError as error:
        raise InvalidFormatError(f"refused at {error}") from None
    except RecursionError:
        raise InvalidFormatError("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidFormatError(f"it is no JSON: {error}") from None


def _reject_constant(name: str) -> None:
    raise InvalidFormatError(f"it is no JSON: {name} is no number")


def _translated(given: Any) -> Translation:
    match given:
        case {"type": "json_object"}:
            return Translation("grammar", grammar_of({"type": "object"}))
        case {"type": "json_schema", "json_schema": {"schema": schema} as holder}:
            return Translation("grammar", _of_schema(schema, JSON, holder))
        case {"type": "json_schema", "json_schema": schema}:
            return Translation("grammar", grammar_of(schema))
        case {"type": "regex_schema", "regex_schema": str(pattern)}:
            return Translation("grammar", _of_expression(pattern))
        case {"type": "grammar", "grammar": str(text)}:
            grammar = ebnf_text(_sized(text))
            return Translation("grammar", grammar.read, grammar)
        case {"type": "lark", "lark": str(text)}:
            grammar = lark_text(_sized(text))
            return Translation("lark", grammar.read, grammar)
        case {"type": "structural_tag", "structural_tag": tag}:
            _sized(json.dumps(tag, ensure_ascii=False))
            tag = {"type": "structural_tag", "format": _part(tag)}
            return Translation("structural_tag", json.dumps(tag, ensure_ascii=False))
        case {"type": str(kind)} if kind in _TYPES:
            raise InvalidFormatError(f"it lacks a member {kind}, or that is of another type")
    found = given.get("type") if isinstance(given, dict) else given
    raise InvalidFormatError(f"its type must be {', '.join(_TYPES[:-1])} or {_TYPES[-1]}, got {shown(found)}")


def _of_schema(schema: Any, syntax: Syntax, holder: dict[str, Any]) -> str:
    order, additional = (_option(holder, name) == "any" for name in ("property_order", "additional"))
    return grammar_of(schema, replace(syntax, has_free_order=order, has_additional=additional))


def _option(holder: dict[str, Any], name: str) -> Any:
    if (value := holder.get(name)) not in (None, "schema", "any"):
        raise InvalidFormatError(f"{name} must be schema or any, got {shown(value)}")
    return value


def _grammar(text: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": text}


def _sized(text: str) -> str:
    """Return a text of a size that may be compiled."""
    if 1 <= (size := len(text.encode(errors="replace"))) <= MAX_BYTES:
        return text
    raise InvalidFormatError(f"it must be 1 to {MAX_BYTES} bytes long, got {size}")


def _of_expression(pattern: str) -> str:
    try:
        return full_match(_sized(pattern))
    except PatternError as error:
        raise InvalidFormatError(f"the expression {shown(pattern)} {error}") from None


def _part(value: Any) -> Any:
    """Return a part of a structural tag as xgrammar is to read it."""
    match value:
        case {"type": "json_schema", "json_schema": schema}:
            return _grammar(_of_schema(schema, LOOSE_JSON, value))
        case {"json_schema": _, "type": kind}:
            raise InvalidFormatError(f"a part {shown(kind)} is not supported; its type may be json_schema")
        case {"type": "regex", "pattern": str(pattern)}:
            return _grammar(_of_expression(pattern))
        case {"type": "grammar", "grammar": str(grammar)}:
            return _grammar(ebnf_text(grammar).read)
        case {"type": "token", "token": str(text)}:
            raise InvalidFormatError(f"the token {shown(text)} must be named by its number")
        case {"type": "token_dispatch" | "token_triggered_tags" as kind}:
            raise InvalidFormatError(f"a part {kind} is not supported")
        case dict():
            return {name: _part(member) for name, member in value.items()}
        case list():
            return [*map(_part, value)]
    return value
