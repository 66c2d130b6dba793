"""Grammars (EBNF) of values that a JSON schema describes and that are not written in JSON.

The schemas are those that `lmdeploy.json_schema.enforceable` writes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmdeploy.json_schema import body_of_rule
from lmdeploy.templates.tool_call_formats.grammar import further_members

# Keywords of `lmdeploy.json_schema.enforceable`'s output that are enforced here.
_KNOWN = {"type", "enum", "anyOf", "$ref", "$defs", "x-hash", "properties", "required", "additionalProperties", "items"}
_KNOWN |= {"minItems", "maxItems", "minLength", "maxLength", "pattern"}
# With as many digits as `backend_cpp/grammar/number_bounds.h` lets them have; Python reads larger powers as infinity.
_DECIMALS = [f'[1-9] [0-9]{{{whole}}} "." [0-9]{{1,{16 - whole}}}' for whole in range(16)]
_NUMBERS = (
    'integer ::= "-"? ("0" | [1-9] [0-9]{0,18})',
    'number ::= "-"? ("0" ("." "0"{0,16} [0-9] [0-9]{0,16})? '
    f"| [1-9] [0-9]{{0,16}} | {' | '.join(_DECIMALS)}) ([eE] [+-]? [0-9] [0-9]?)?",
)


@dataclass(frozen=True, slots=True)
class Syntax:
    """How values are written.

    Attributes
    ----------
    literal : callable
        Writes a value.
    rules : tuple of str
        Rules for ``string``, for ``char`` of one, and for ``name`` of a member of an object within.
    quote, forbidden : str
        Around texts, and the characters that ``char`` is none of.
    member : callable
        Writes a member's name and what is before its value.
    colon, comma : str
        Between a member's name and its value, where any name may be; between members and items.
    words : tuple of str
        True, false and null.
    """

    literal: Callable[[Any], str]
    rules: tuple[str, ...]
    quote: str
    forbidden: str
    member: Callable[[str], str]
    colon: str
    comma: str
    words: tuple[str, str, str]


@dataclass(slots=True)
class SchemaRules:
    """Makes rules of a schema.

    Parameters
    ----------
    syntax : Syntax
        How values are written.
    root : mapping
        The schema that references are looked up in.
    """

    syntax: Syntax
    root: Mapping[str, Any]
    _rules: list[str] = field(default_factory=list)
    _referred: dict[str, str] = field(default_factory=dict)  # reference -> rule

    def grammar(self, body: str) -> str:
        """Return the grammar whose root is `body`, which names rules that were made."""
        true, false, null = map(_text, self.syntax.words)
        comma, colon = _text(self.syntax.comma), _text(self.syntax.colon)
        own = [
            *_NUMBERS,
            *self.syntax.rules,
            f"boolean ::= {true} | {false}",
            f"null ::= {null}",
            "any ::= string | number | boolean | null | anylist | anyobject",
            f'anylist ::= "[" (any ({comma} any)*)? "]"',
            f"anymember ::= name {colon} any",
            f'anyobject ::= "{{" (anymember ({comma} anymember)*)? "}}"',
        ]
        return "\n".join([f"root ::= {body}", *self._rules, *own])

    def value(self, schema: Any) -> str:
        """Return the name of the rule of a value.

        Raises
        ------
        ValueError
            The schema has a keyword that cannot be held; names it.
        """
        if schema == {}:
            return "any"
        self._require_known(schema)
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "enum" in schema:
            return self._add(" | ".join(_text(self.syntax.literal(value)) for value in schema["enum"]))
        if "anyOf" in schema:
            return self._add(" | ".join(self.value(one) for one in schema["anyOf"]))
        return self._of_kind(schema["type"], schema)

    def members(self, schema: Mapping[str, Any], member: Callable[[str], str], others: str, *, is_sorted: bool) -> str:
        """Return the name of the rule of an object's members, without what is around them.

        Parameters
        ----------
        schema
            Of the object, which is no union and no reference.
        member
            Writes a name and what is before its value.
        others
            The body of a rule of a member whose name the schema does not give, before its value.
        is_sorted
            Members come in alphabetical order, not in the schema's.
        """
        further = further_members(schema)
        properties, required = schema.get("properties", {}), schema.get("required", ())
        names = sorted(properties) if is_sorted else list(properties)
        comma = _text(self.syntax.comma)
        more = "" if further is False else f"{others} {self.value({} if further is True else further)}"
        # After the last: `head` where nothing was written yet, `tail` where something was.
        tail = self._add(f"({comma} {more})*" if more else '""')
        head = self._add(f'"" | {more} ({comma} {more})*' if more else '""')
        for name in reversed(names):
            one = self._add(f"{_text(member(name))} {self.value(properties[name])}")
            is_required = name in required
            head = self._add(f"{one} {tail}" + ("" if is_required else f" | {head}"))
            tail = self._add(f"{comma} {one} {tail}" + ("" if is_required else f" | {tail}"))
        return head

    def _of_kind(self, kind: str, schema: Mapping[str, Any]) -> str:
        match kind:
            case "string" if "pattern" in schema:
                body = body_of_rule(schema["pattern"], self.syntax.forbidden)
                if body is None:
                    raise ValueError("the keyword pattern, with characters that the format escapes")
                return self._add(f"{_text(self.syntax.quote)} ({body}) {_text(self.syntax.quote)}")
            case "string" if "minLength" in schema or "maxLength" in schema:
                minimum, maximum = schema.get("minLength", 0), schema.get("maxLength", "")
                return self._add(f"{_text(self.syntax.quote)} char{{{minimum},{maximum}}} {_text(self.syntax.quote)}")
            case "string" | "integer" | "number" | "boolean" | "null":
                return kind
            case "array":
                return self._list(schema)
            case "object":
                others = f"name {_text(self.syntax.colon)}"
                inner = self.members(schema, self.syntax.member, others, is_sorted=False)
                return self._add(f'"{{" {inner} "}}"')
        raise ValueError(f"the type {kind!r}")

    def _list(self, schema: Mapping[str, Any]) -> str:
        items = schema.get("items", {})
        minimum, maximum = schema.get("minItems", 0), schema.get("maxItems")
        if maximum == 0 or items is False:
            return self._add('"[]"')
        item, comma = self.value(items), _text(self.syntax.comma)
        further = f"({comma} {item}){{{max(minimum - 1, 0)},{'' if maximum is None else maximum - 1}}}"
        inner = f"{item} {further}"
        return self._add(f'"[" {inner} "]"' if minimum else f'"[" ({inner})? "]"')

    def _reference(self, reference: str) -> str:
        if reference not in self._referred:
            found = self.root["$defs"][reference.rpartition("/")[2]]
            rule = self._referred[reference] = self._new()
            self._rules.append(f"{rule} ::= {self.value(found)}")
        return self._referred[reference]

    def _require_known(self, schema: Mapping[str, Any]) -> None:
        if unknown := [key for key in schema if key not in _KNOWN]:
            raise ValueError(f"the keyword {unknown[0]}")

    def _add(self, body: str) -> str:
        rule = self._new()
        self._rules.append(f"{rule} ::= {body}")
        return rule

    def _new(self) -> str:
        self._rules.append("")  # so that names differ
        return f"r{len(self._rules)}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else '""'


def until(mark: str) -> Sequence[str]:
    """Return the rules of ``rest``: any text up to a mark, and the mark. ``restN`` continues after N characters."""
    rules = []
    for size, char in enumerate(mark):
        then = [f"{_text(char)} rest{size + 1}" if size + 1 < len(mark) else _text(char)]
        seen = [char]
        for again in range(size, 0, -1):  # what begins the mark again
            if mark[again - 1] not in seen and mark[:size].endswith(mark[: again - 1]):
                then.append(f"{_text(mark[again - 1])} rest{again}")
                seen.append(mark[again - 1])
        excluded = "".join(f"\\{each}" if each in "]\\^-" else each for each in seen)
        rules.append(f"rest{size or ''} ::= {' | '.join(then)} | [^{excluded}] rest")
    return rules
