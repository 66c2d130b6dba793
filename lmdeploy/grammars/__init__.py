"""From a ``response_format``, as any caller gives it, to the one that the grammar library hands to xgrammar.

Schemas become schemas that xgrammar keeps to (`lmdeploy.json_schema`), expressions become plain characters, classes and
counts. This runs where formats are compiled, in a process whose time and memory are limited.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lmdeploy.grammars.texts import GrammarError, GrammarText, ebnf_text, lark_text
from lmdeploy.json_schema import MAX_BYTES, SchemaError, enforceable, full_match
from lmdeploy.json_schema.output import without_lengths
from lmdeploy.json_schema.patterns import PatternError
from lmdeploy.json_schema.places import shown

_PREFIXES = ("response_format cannot be compiled: ", "response_format: ")  # of messages about what was translated


class RefusedFormatError(ValueError):
    """An invalid format, or one that the engine cannot enforce."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A format for xgrammar.

    Attributes
    ----------
    read : dict
        The format.
    grammar : GrammarText, optional
        Its grammar, where it is one.
    """

    read: Any
    grammar: GrammarText | None = None

    def explain(self, message: str) -> str:
        """Return a message about `read` as one about the user's format."""
        if self.grammar is None:
            return message
        for prefix in _PREFIXES:
            message = message.removeprefix(prefix)
        return f"response_format: {self.grammar.explain(message)}"


def translated(response_format: str, number_of: Callable[[str], int] | None = None) -> Translation:
    """Return a format for xgrammar.

    Parameters
    ----------
    response_format
        The user's, as JSON.
    number_of
        Returns the number of the token that has a text, or -1. None: texts of tokens stay, which take xgrammar a
        vocabulary of its own.

    Raises
    ------
    RefusedFormatError
        The format is invalid or cannot be enforced.
    """
    try:
        given = json.loads(response_format)
        return _translated(given, number_of) if isinstance(given, dict) else Translation(given)
    except RefusedFormatError:
        raise
    except SchemaError as error:
        raise RefusedFormatError(f"refused at {error}") from None
    except GrammarError as error:
        raise RefusedFormatError(str(error)) from None
    except RecursionError:
        raise RefusedFormatError("it is nested too deeply") from None
    except ValueError as error:
        raise RefusedFormatError(f"it is no JSON: {error}") from None


def _translated(given: dict[str, Any], number_of: Callable[[str], int] | None) -> Translation:
    match given:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return Translation(given | {"json_schema": {"schema": _schema(schema)}})
        case {"type": "json_schema", "json_schema": schema}:
            return Translation(given | {"json_schema": {"schema": _schema(schema)}})
        case {"type": "regex_schema", "regex_schema": str(pattern)}:
            return Translation(given | {"regex_schema": _expression(pattern)})
        case {"type": "grammar" | "lark" as kind} if isinstance(given.get(kind), str):
            grammar = (ebnf_text if kind == "grammar" else lark_text)(_sized(given[kind]))
            return Translation(given | {kind: grammar.read}, grammar)
        case {"type": "structural_tag", "structural_tag": tag}:
            names = _sized(json.dumps(tag, ensure_ascii=False))
            parts = _TagParts(number_of)
            read = {"structural_tag": parts.read(tag), "regexes": parts.regexes, "grammars": parts.grammars}
            return Translation(given | read | {"names": names})
    return Translation(given)


def _schema(schema: Any) -> Any:
    return enforceable(schema) if isinstance(schema, dict) else schema


def _sized(text: str) -> str:
    """Return a text of a size that may be compiled."""
    if 1 <= (size := len(text.encode(errors="replace"))) <= MAX_BYTES:
        return text
    raise RefusedFormatError(f"it must be 1 to {MAX_BYTES} bytes long, got {size}")


def _expression(pattern: str) -> str:
    try:
        return full_match(_sized(pattern))
    except PatternError as error:
        raise RefusedFormatError(f"the expression {shown(pattern)} {error}") from None


@dataclass(slots=True)
class _TagParts:
    """Parts of a structural tag; collects expressions and grammars that are no schemas."""

    number_of: Callable[[str], int] | None
    regexes: list[str] = field(default_factory=list)
    grammars: list[str] = field(default_factory=list)

    def read(self, value: Any) -> Any:
        """Return a part as xgrammar is to read it."""
        match value:
            case {"json_schema": schema, "is_enforced": True}:
                rest = {name: each for name, each in value.items() if name != "is_enforced"}
                return rest | {"json_schema": without_lengths(schema)}
            case {"json_schema": schema}:
                return value | {"json_schema": without_lengths(_schema(schema))}
            case {"type": "regex", "pattern": str(pattern)}:
                self.regexes.append(_expression(pattern))
                return value | {"pattern": self.regexes[-1]}
            case {"type": "grammar", "grammar": str(grammar)}:
                self.grammars.append(ebnf_text(grammar).read)
                return value
            case {"type": "token", "token": token}:
                return value | {"token": self._token(token)}
            case {"type": "token_dispatch", "rules": list(rules)}:
                value = value | {
                    "rules": [self._tokens(rule[:1]) + rule[1:] for rule in rules if isinstance(rule, list)]
                }
        match value:
            case dict():
                of_tokens = ("exclude_tokens", "trigger_tokens")
                return {
                    name: self._tokens(each) if name in of_tokens and isinstance(each, list) else self.read(each)
                    for name, each in value.items()
                }
            case list():
                return [*map(self.read, value)]
        return value

    def _tokens(self, tokens: list[Any]) -> list[Any]:
        return [*map(self._token, tokens)]

    def _token(self, token: Any) -> Any:
        """Return the number of a token, since xgrammar would want the vocabulary for texts."""
        if self.number_of is None or not isinstance(token, str):
            return token
        if (number := self.number_of(token)) < 0:
            raise RefusedFormatError(f"there is no token {json.dumps(token, ensure_ascii=False)}")
        return number
