"""Keywords of one type, and their opposites."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from lmdeploy.json_schema.charsets import EVERY
from lmdeploy.json_schema.formats import language_of_format
from lmdeploy.json_schema.languages import Language, TooAlikeError, combined
from lmdeploy.json_schema.nodes import Node, shown
from lmdeploy.json_schema.patterns import PatternError, language_of
from lmdeploy.json_schema.sets import (
    TRUE,
    Alternative,
    Arrays,
    Conjunction,
    Contained,
    Numbers,
    Objects,
    Rules,
    Strings,
    Typed,
    Union,
    Values,
    common,
)
from lmdeploy.json_schema.values import exact, is_finite

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
EVERYTHING: Union = (Values((None,)), Values((True, False)), Numbers(), Strings(), Arrays(), Objects())
_WHOLE = dict(zip(("null", "boolean", "number", "string", "array", "object"), EVERYTHING, strict=True))

# Keyword -> type that it is about, and which bound it is; of numbers also on which side of its number that is.
_COUNTS: dict[str, tuple[type[Any], str]] = {
    "minLength": (Strings, "low"),
    "maxLength": (Strings, "high"),
    "minItems": (Arrays, "low"),
    "maxItems": (Arrays, "high"),
    "minProperties": (Objects, "low"),
    "maxProperties": (Objects, "high"),
}
_BOUNDS: dict[str, tuple[str, int]] = {
    "minimum": ("low", 0),
    "maximum": ("high", 0),
    "exclusiveMinimum": ("low", 1),
    "exclusiveMaximum": ("high", -1),
}

ANNOTATIONS = {
    *("$comment", "title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
}
"""Keywords that say nothing about values."""

_MAX_HOPS = 32  # from reference to reference

MAX_COUNT = 100_000
"""Of lengths and counts."""


def members(node: Node, keyword: str, kind: type[Any], what: str) -> Any:
    """Return the value of a keyword, which has to be of a type; None: it is not there."""
    value = node.schema.get(keyword)
    if keyword in node.schema and not isinstance(value, kind):
        raise node.failure(keyword, f"must be {what}, got {shown(value)}")
    return value


def names_of(node: Node, keyword: str, value: object) -> list[str]:
    """Return a list of names that is the value of a keyword, or part of one."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise node.failure(keyword, f"must be a list of strings, got {shown(value)}")
    return list(dict.fromkeys(value))


def number_of(node: Node, keyword: str) -> Fraction | None:
    """Return the number that is the value of a keyword; None: it is not there."""
    if keyword not in node.schema:
        return None
    value = node.schema[keyword]
    if not is_finite(value):
        raise node.failure(keyword, f"must be a number, got {shown(value)}")
    return exact(value)


def count_of(node: Node, keyword: str) -> int | None:
    """Return the count that is the value of a keyword; None: it is not there."""
    value = node.schema.get(keyword)
    if keyword not in node.schema:
        return None
    if not is_finite(value) or exact(value).denominator != 1 or value < 0:  # 1.0 is an integer too
        raise node.failure(keyword, f"must be an integer >= 0, got {shown(value)}")
    if value > MAX_COUNT:
        raise node.failure(keyword, f"{keyword} must be at most {MAX_COUNT}, got {shown(value)}")
    return int(value)


def types_of(node: Node) -> tuple[str, ...]:
    """Return the types that ``type`` allows."""
    if "type" not in node.schema:
        return TYPES
    given = node.schema["type"]
    kinds = [given] if isinstance(given, str) else given
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
        raise node.failure("type", f"must be one or some of {', '.join(TYPES)}, got {shown(given)}")
    return tuple(kinds)


def of_type(node: Node) -> Iterator[Alternative]:
    """Yield the values that the keywords about one type allow."""
    kinds = types_of(node)
    for kind, whole in _WHOLE.items():
        found: Alternative | None = whole
        if kind == "number" and "integer" in kinds:
            found = whole if kind in kinds else Numbers(whole=True)
        elif kind not in kinds:
            continue
        if not isinstance(found, Values):
            for part in _parts(node, type(found)):
                found = common(found, part) if found else None
        if found:
            yield found


def _parts(node: Node, kind: type[Any]) -> Iterator[Typed]:
    """Yield what the keywords about a type allow."""
    for keyword, (of_kind, side) in _COUNTS.items():
        if of_kind is kind and (count := count_of(node, keyword)) is not None:
            yield kind(**{side: count}, pointer=f"{node.pointer}/{keyword}")
    if kind is Numbers:
        for keyword, (side, above) in _BOUNDS.items():
            if (number := number_of(node, keyword)) is not None:
                bound: Any = {side: (number, above)}
                yield Numbers(**bound, pointer=f"{node.pointer}/{keyword}")
        if (factor := number_of(node, "multipleOf")) is not None:
            if factor <= 0:
                raise node.failure("multipleOf", f"must be above 0, got {shown(node.schema['multipleOf'])}")
            yield Numbers(factors=((factor, f"{node.pointer}/multipleOf"),))
    elif kind is Strings:
        yield Strings(languages=tuple(languages_of(node)))
    else:
        yield _arrays(node) if kind is Arrays else _objects(node)


def languages_of(node: Node) -> Iterator[tuple[Language, str]]:
    """Yield the languages of ``pattern`` and ``format``, each with its pointer."""
    if (pattern := members(node, "pattern", str, "a string")) is not None:
        yield pattern_of(node, "pattern", pattern), f"{node.pointer}/pattern"
    name = members(node, "format", str, "a string")
    if name is not None and (language := language_of_format(name)) is not None:
        yield language, f"{node.pointer}/format"


def pattern_of(node: Node, keyword: str, pattern: str, is_met: bool = True) -> Language:
    """Return the language of an expression, or of all other strings."""
    budget, pointer = node.document.budget, f"{node.pointer}/{keyword}"
    budget.spend(len(pattern), pointer)
    try:
        if is_met:
            return language_of(pattern)
        return combined([], [language_of(pattern, is_loose=True)], EVERY, budget, pointer)
    except TooAlikeError:
        raise node.failure(keyword, "its opposite is not enforced") from None
    except PatternError as error:
        raise node.failure(keyword, f"the expression {shown(pattern)} {error}") from None


def _arrays(node: Node) -> Arrays:
    schema = node.schema
    # Older drafts: a list of `items`, and `additionalItems` for all others.
    is_old = isinstance(schema.get("items"), list)
    before, after = ("items", "additionalItems") if is_old else ("prefixItems", "items")
    prefix = tuple(term(node.at(before, number)) for number in range(len(members(node, before, list, "a list") or ())))
    rest = term(node.at(after)) if after in schema else TRUE
    unique = f"{node.pointer}/uniqueItems" if members(node, "uniqueItems", bool, "true or false") else None
    return Arrays(
        prefix,
        rest,
        is_open=after in schema,
        evaluated=None if after in schema else len(prefix),
        unique=unique,
        contained=tuple(_contained(node)),
    )


def _contained(node: Node) -> Iterator[Contained]:
    low, high = count_of(node, "minContains"), count_of(node, "maxContains")
    low = 1 if low is None else low
    if "contains" in node.schema and (low or high is not None):
        evaluates = not node.document.is_of("2019-09")
        yield Contained(term(node.at("contains")), low, high, f"{node.pointer}/contains", evaluates)


def _objects(node: Node) -> Objects:
    schema = node.schema
    properties = members(node, "properties", dict, "an object") or {}
    patterns = members(node, "patternProperties", dict, "an object") or {}
    rules = Rules(
        {name: term(node.at("properties", name)) for name in properties},
        tuple(
            (pattern_of(node, "patternProperties", pattern), term(node.at("patternProperties", pattern)))
            for pattern in patterns
        ),
        term(node.at("additionalProperties")) if "additionalProperties" in schema else None,
        lists="properties" in schema,
    )
    says_anything = rules.lists or rules.patterns or rules.others is not None
    return Objects(
        (rules,) if says_anything else (),
        tuple(names_of(node, "required", schema["required"])) if "required" in schema else (),
        term(node.at("propertyNames")) if "propertyNames" in schema else TRUE,
    )


def term(node: Node, is_met: bool = True) -> Conjunction:
    """Return the conjunction of a schema, or of its opposite; of a mere reference, that of its target."""
    for _ in range(_MAX_HOPS):
        if node.schema is True or node.schema == {}:
            return TRUE if is_met else ((node, False),)
        if node.schema is False or node.schema.keys() - ANNOTATIONS != {"$ref"}:
            break
        node = node.document.referred(node, "$ref")
    return ((node, is_met),)


def opposite(node: Node) -> Iterator[Alternative]:
    """Yield what the keywords about one type do not allow."""
    schema = node.schema
    if "type" in schema:
        kinds = types_of(node)
        for kind, every in _WHOLE.items():
            if kind == "number" and "integer" in kinds:
                every = Numbers(whole=False, pointer=f"{node.pointer}/type")
            if kind not in kinds:
                yield every
    for keyword, (of_kind, side) in _COUNTS.items():
        if (count := count_of(node, keyword)) is not None and (side == "high" or count > 0):
            bounds = {"high": count - 1} if side == "low" else {"low": count + 1}
            yield of_kind(**bounds, pointer=f"{node.pointer}/{keyword}")
    for keyword, (side, above) in _BOUNDS.items():
        if (bound := number_of(node, keyword)) is not None:
            yield Numbers(high=(bound, above - 1)) if side == "low" else Numbers(low=(bound, above + 1))
    if (pattern := members(node, "pattern", str, "a string")) is not None:
        yield Strings(languages=((pattern_of(node, "pattern", pattern, False), f"{node.pointer}/pattern"),))
    for keyword in ("multipleOf", "uniqueItems", "patternProperties", "propertyNames"):
        if schema.get(keyword) not in (None, False, {}, True if keyword == "propertyNames" else None):
            raise node.failure(keyword, "its opposite is not enforced")
    if language_of_format(str(schema.get("format"))) is not None:
        raise node.failure("format", "its opposite is not enforced")
    if schema.get("additionalProperties", True) not in (True, {}):
        others = term(node.at("additionalProperties"), False)
        yield Objects(beyond=((frozenset(schema.get("properties", ())), others),))
    for name in members(node, "properties", dict, "an object") or {}:
        rules = Rules({name: term(node.at("properties", name), False)}, evaluates=False)
        yield Objects((rules,), (name,))
    for name in names_of(node, "required", schema.get("required", [])):
        yield lacking(node, name)
    prefix = members(node, "prefixItems", list, "a list") or ()
    for number in range(len(prefix)):
        item = term(node.at("prefixItems", number), False)
        yield Arrays((*(TRUE for _ in range(number)), item), low=number + 1)
    if "items" in schema and schema["items"] not in (True, {}):
        if prefix or isinstance(schema["items"], list):
            raise node.failure("items", "its opposite is not enforced behind prefixItems")
        yield Arrays(contained=(Contained(term(node.at("items"), False), 1, None, f"{node.pointer}/items"),))
    for contained in _contained(node):
        if contained.low == 1:
            yield Arrays(rest=term(node.at("contains"), False), is_open=True)
        elif contained.low > 1:
            yield Arrays(contained=(Contained(contained.what, 0, contained.low - 1, contained.pointer),))
        if contained.high is not None:
            yield Arrays(contained=(Contained(contained.what, contained.high + 1, None, contained.pointer),))


def lacking(node: Node, name: str) -> Objects:
    """Return the objects that have no member of that name."""
    never = term(node.document.node(False, f"{node.pointer}/required"))
    return Objects((Rules({name: never}, evaluates=False),))
