"""Each keyword: values that are valid can still be written, others cannot, and what is not enforced is refused."""

import contextlib
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import idna
import jsonschema_rs
import pytest

from lmdeploy.json_schema import SchemaError, grammar_of, relaxed
from tests.support.grammar_walk import Judge, accepts, accepts_value, of_schema, walk
from tests.support.work import calls_made_by


def rows_of(name: str) -> list[Any]:
    """Return the JSON values of a file, one a line."""
    return [*map(json.loads, (Path(__file__).parent / name).open())]


@pytest.mark.parametrize("row", rows_of("enforced.jsonl"))
def test_valid_values_can_be_written_and_others_cannot(row: list[Any]) -> None:
    schema, valid, invalid, *options = row
    grammar = of_schema(schema, **(options[0] if options else {}))
    assert [value for value in valid if not accepts_value(grammar, value)] == []
    assert [value for value in invalid if accepts_value(grammar, value)] == []
    if ("items" in schema and isinstance(schema["items"], list)) or "dependencies" in schema:
        return  # the standard of today knows neither
    validator = Judge(schema)
    assert [value for value in valid if not validator.is_valid(value)] == []
    assert "format" in schema or [value for value in invalid if validator.is_valid(value)] == []
    chance = random.Random(0)
    for _ in range(20):
        if (text := walk(grammar, chance)) is not None:
            validator.validate(json.loads(text.decode("utf-8", "replace")))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer"}, ["1", "1.0", "-10.0"], ["1.5", "1.00", "1e3"]),
        ({"type": "integer", "minimum": 3, "maximum": 120}, ["3.0", "120.0"], ["2.0", "3.5"]),
        ({"enum": [1, [0], 2.5]}, ["1.0", "[0.0]", "2.5"], ["2.50", "1.5"]),
    ],
)
def test_an_integer_may_have_a_zero_after_its_point(
    schema: dict[str, Any], valid: list[str], invalid: list[str]
) -> None:
    assert [text for text in valid + invalid if accepts(of_schema(schema), text)] == valid


def lists_of(items: list[Any]) -> list[Any]:
    """Return the lists of up to four of some items."""
    return [list(value) for count in range(5) for value in itertools.product(items, repeat=count)]


OBJECTS = [dict.fromkeys(names, 1) for count in range(5) for names in itertools.permutations("abcd", count)]
MEMBERS = {"type": "object", "properties": dict.fromkeys("abcd", True), "required": ["d", "b"], "maxProperties": 3}
ITEMS = [1, "b", [1], True]
LISTS, OTHERS = lists_of([*ITEMS, "a"]), lists_of([0, 1, None, "a"])
DIFFERENT: dict[str, Any] = {"type": "array", "items": {"enum": ITEMS}, "uniqueItems": True}
ANY = {"type": "array", "items": {"enum": [0, 1, None, "a"]}}
NULLS: dict[str, Any] = {"contains": {"type": "null"}}
ONES: dict[str, Any] = {"contains": {"const": 1}}
SEVERAL = {"contains": {"enum": ["b", 1, True]}}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (MEMBERS, OBJECTS),
        ({"const": dict.fromkeys("abc", 1)}, OBJECTS),
        (DIFFERENT, LISTS),
        (DIFFERENT | {"minItems": 2, "maxItems": 3}, LISTS),
        (DIFFERENT | SEVERAL | {"minContains": 2, "maxContains": 2}, LISTS),
        (DIFFERENT | {"prefixItems": [{"enum": [1, "a"]}, {"enum": ITEMS}]}, LISTS),
        (ANY | NULLS | {"minContains": 2, "maxContains": 3}, OTHERS),
        (ANY | NULLS | {"minContains": 0, "maxContains": 1}, OTHERS),
        (ANY | NULLS | {"prefixItems": [{"const": 1}, {}], "maxContains": 2}, OTHERS),
        (ANY | NULLS | {"uniqueItems": True, "maxContains": 2}, OTHERS),
        (ANY | {"contains": {}, "minContains": 2, "maxContains": 3}, OTHERS),
        (ANY | {"contains": {"type": ["null", "integer"]}, "maxContains": 2, "maxItems": 4}, OTHERS),
        (ANY | {"allOf": [NULLS, ONES]}, OTHERS),
        (ANY | {"allOf": [NULLS | {"maxContains": 1}, ONES | {"minContains": 0, "maxContains": 1}]}, OTHERS),
    ],
)
def test_few_members_and_items_come_in_every_order_that_is_valid(schema: dict[str, Any], values: list[Any]) -> None:
    grammar, validator = of_schema(schema, has_free_order=values is OBJECTS), Judge(schema)
    assert [value for value in values if accepts_value(grammar, value) != validator.is_valid(value)] == []


def test_the_order_of_many_members_is_not_free() -> None:
    many = {"type": "object", "properties": of_many(9, lambda _: True)}
    with pytest.raises(SchemaError, match="property_order is free for up to 8 members, got 9"):
        of_schema(many, has_free_order=True)


def test_many_different_items_come_in_the_order_of_their_enum() -> None:
    items = [f"n{number}" for number in range(40)]
    schema: dict[str, Any] = {"type": "array", "items": {"enum": items}, "uniqueItems": True}
    for bounds in ({}, {"minItems": 3}, {"minItems": 2, "maxItems": 8}):
        grammar, chance = of_schema(schema | bounds), random.Random(0)
        low, high = bounds.get("minItems", 0), bounds.get("maxItems", len(items))
        for count in range(len(items) + 1):
            value = sorted(chance.sample(items, count), key=items.index)
            assert accepts_value(grammar, value) == (low <= count <= high), count
            assert count == 0 or not accepts_value(grammar, [*value, value[-1]])
    with pytest.raises(SchemaError, match="for up to 128 items that may come, got 129"):
        of_schema(schema | {"items": {"enum": [*range(129)]}})
    with pytest.raises(SchemaError, match="takes more than 512 sets of different items"):
        of_schema(schema | {"contains": {"enum": ["n3", "n5"]}})


@pytest.mark.parametrize(("name", "valid", "invalid"), rows_of("formats.jsonl"))
def test_a_format_is_what_its_rfc_says(name: str, valid: list[str], invalid: list[str]) -> None:
    schema = {"type": "string", "format": name}
    grammar = of_schema(schema)
    assert [text for text in valid if not accepts_value(grammar, text)] == []
    assert [text for text in invalid if accepts_value(grammar, text)] == []
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    for seed in range(40):
        if (written := walk(grammar, random.Random(seed))) is not None:
            text = json.loads(written)
            assert validator.is_valid(text), text
            if name == "idn-hostname":
                idna.encode(text)
            elif name == "regex":
                re.compile(text)


@pytest.mark.parametrize(("pointer", "schema"), rows_of("refused.jsonl"))
def test_what_is_not_enforced_is_refused_with_the_path_of_its_keyword(pointer: str, schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError) as rejected:
        grammar_of(schema)
    assert rejected.value.pointer == pointer


def nested(depth: int, wrap: Any) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def of_many(count: int, make: Any) -> dict[str, Any]:
    return {f"p{number}": make(number) for number in range(count)}


HOSTILE: dict[str, dict[str, Any]] = {
    "product": {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(8)]} for i in range(40)]},
    "nested anyOf": nested(11, lambda schema: {"anyOf": [schema, schema]}),
    "nested oneOf": nested(9, lambda schema: {"oneOf": [schema, {"type": "string"}, schema]}),
    "nested not": nested(60, lambda schema: {"not": schema}),
    "references": {
        "$ref": "#/$defs/p0",
        "$defs": of_many(60, lambda i: {"anyOf": [{"$ref": f"#/$defs/p{i + 1}"}] * 2}) | {"p60": True},
    },
    "opposites of references": {
        "not": {"$ref": "#/$defs/p0"},
        "$defs": of_many(60, lambda i: {"allOf": [{"$ref": f"#/$defs/p{i + 1}"}] * 2}) | {"p60": False},
    },
    "conditions of references": {
        "$ref": "#/$defs/p0",
        "$defs": of_many(60, lambda i: {key: {"$ref": f"#/$defs/p{i + 1}"} for key in ("if", "then", "else")})
        | {"p60": {"type": ["integer", "string", "null"]}},
    },
    "dependencies": {
        "type": "object",
        "properties": of_many(40, lambda _: {}),
        "dependentRequired": of_many(40, lambda i: [f"p{(i + 1) % 40}"]),
    },
    "conditions": {
        "type": "object",
        "properties": of_many(30, lambda _: {"enum": [1, 2]}),
        "allOf": [
            {"if": {"properties": {f"p{i}": {"const": 1}}}, "then": {"required": [f"p{i + 1}"]}} for i in range(29)
        ],
    },
    "alternatives": {"oneOf": [{"properties": {f"k{i}": {"const": str(i)}}} for i in range(60)]},
    "enums": {"allOf": [{"enum": [str(i) for i in range(3000)]}, {"enum": [str(i) for i in range(1500, 4000)]}]},
    "properties": {
        "type": "object",
        "properties": of_many(1200, lambda _: {"type": "string"}),
        "additionalProperties": True,
    },
    "pattern properties": {"type": "object", "patternProperties": {f"^{i}[a-z]*$": {"minimum": i} for i in range(300)}},
    "matching": {"pattern": "^" + "(a?)" * 300 + "a{300}$", "enum": ["a" * length for length in range(250, 300)]},
    "formats": {"format": "uri-reference", "enum": [f"https://example.com/a/b/c?d=e&f=g{i}" for i in range(1400)]},
    "patterns": {"anyOf": [{"type": "string", "pattern": f"^({'a?' * 1500}){i}$"} for i in range(18)]},
    "options of options": {"type": "string", "pattern": f"^{'(' * 39}a{')?' * 39}$"},
    "alike": {"type": "string", "pattern": "^(a{1000}b|a{1000}c)$"},
    "loops": {
        "type": "string",
        "pattern": r"^(\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)(T(\d+S|\d+M(\d+S)?))?$",
        "maxLength": 200,
    },
    "optional": {"allOf": [{"pattern": "^" + "(a?)" * 300 + "a{300}$"}, {"not": {"pattern": "b"}}], "type": "string"},
    "states": {"allOf": [{"pattern": "^(a|b)*a(a|b){12}$"}, {"pattern": "^(a|b)*b(a|b){11}$"}], "type": "string"},
    "opposites": {"type": "string", "not": {"anyOf": [{"pattern": f"x{i}y"} for i in range(40)]}},
    "names of patterns": {
        "patternProperties": {f"a{i}.*b": {"minimum": i} for i in range(30)},
        "additionalProperties": {"type": "string"},
    },
    "closed": {
        "oneOf": [{"properties": of_many(i, lambda _: {}), "additionalProperties": False} for i in range(2, 20)],
    },
    "different": {"type": "array", "items": {"enum": list(range(2000))}, "uniqueItems": True},
    "long names": {"properties": {f"{i}{'n' * 900}": True for i in range(60)}, "maxProperties": 50},
    "large classes": {
        "anyOf": [{"type": "string", "pattern": f"^{chr(92)}W{{9}}{i}" + r"\W\D" * 450} for i in range(25)]
    },
    "numbers": {"type": "integer", "minimum": 10**4000, "multipleOf": 10**4000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_worked_out_or_refused_with_bounded_work(name: str) -> None:
    def work_out() -> None:
        with contextlib.suppress(SchemaError):
            assert len(grammar_of(HOSTILE[name])) < 1.1 * 2**20

    assert calls_made_by(work_out) < 500_000  # the most of these takes half of it, in about 50 ms


def test_a_schema_of_usual_size_takes_little_work_and_none_when_it_comes_again() -> None:
    schema = {"type": "object", "properties": of_many(20, lambda i: {"type": "string", "maxLength": 10 + i})}
    assert calls_made_by(lambda: grammar_of(schema)) < 20_000
    assert calls_made_by(lambda: grammar_of(schema)) < 50


def test_a_relaxed_schema_keeps_what_is_enforced() -> None:
    item: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 1}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": item, "b": {"type": "string", "pattern": "(?=x)"}},
        "required": ["a"],
    }
    left = relaxed(schema)
    assert left["properties"] == {
        "a": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        "b": {"type": "string"},
    }
    assert schema["properties"]["a"]["uniqueItems"] is True  # is left as it was
    assert relaxed({"type": "nonsense", "required": 3}) in ({}, {"type": "object"})
    assert relaxed({"$ref": "#"}) == {"type": "object"}
