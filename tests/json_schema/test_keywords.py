"""Each keyword: values that are valid can still be written, others cannot, and what is not enforced is refused."""

import contextlib
import itertools
import json
import random
import re
from typing import Any

import idna
import jsonschema_rs
import pytest

from lmdeploy.json_schema import SchemaError, grammar_of, relaxed
from tests.support.grammar_walk import Judge, accepts, accepts_value, of_schema, walk
from tests.support.work import calls_made_by

# Format, strings that have it, strings that have not, by the RFCs.
FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29", "2023-12-31"], ["2023-02-29", "2024-13-01", "24-01-01"]),
    "time": (["23:59:59Z", "08:30:06.123456789z", "00:00:00-23:59"], ["24:00:00Z", "08:30:06", "08:30Z"]),
    "date-time": (["2024-02-29t01:02:03z", "1985-04-12T00:59:59.999999999999999+01:00"], ["2024-02-29 01:02:03Z"]),
    "duration": (["P1Y2M3DT4H5M6S", "P4W", "PT1M"], ["P", "PT", "P1D2Y", "P1W1D", "PT1D"]),
    "email": (
        [
            "a@b",
            "te.s.t@a-b.com",
            "!#$%&'*+/=?^_`{|}~-@b",
            f"{'a' * 64}@b.com",
            "a@[127.0.0.1]",
            "a@[IPv6:::1]",
            '"a b..@\\""@c',
        ],
        [".a@b", "a.@b", "a..b@c", "@b", "a@", f"{'a' * 65}@b.com", "a@[127.0.0.300]", "a b@c", '"a"b@c'],
    ),
    "idn-email": (["δοκιμή@例え.jp", "a@b", "\U0001d54f@b.com"], ["é\uff20b", "é@", f"{'日' * 22}@b.com"]),
    "hostname": (
        ["a", "1a", "a-b.c--d.com", f"{'a' * 63}.{'b' * 63}.com", "a.b.c.d.e.f.g.h"],
        ["", ".", "a.", "a..b", "-a", "a-", "a_b", "ab--c", "xn--X", "\u212aelvin", f"{'a' * 64}.com"],
    ),
    "idn-hostname": (
        ["straße.de", "łódź.pl", "例え.jp", "αθήνα。gr", "שלום.com", "a.b.c.d", "a" * 63],
        ["-é", "é-", "é..b", "É", "a\u0301", "aא", "0a.א", "\u302e실", "例" * 30, "a" * 64, "xn--7a"],
    ),
    "ipv4": (["0.0.0.0", "255.249.199.99"], ["1.2.3", "1.2.3.256", "01.2.3.4"]),
    "ipv6": (
        ["::", "1::", "::8", "1:2::7:8", "1:2:3:4:5:6:7:ab8", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1::5:1.2.3.4"],
        ["1:2", "1::2::3", ":1", "12345::", "1:2:3:4:5:6:7:1.2.3.4", "::1.2.3", "1:2:3:4:5:6::1.2.3.4", "::1%a"],
    ),
    "uuid": (["2EB8AA08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
    "uri": (
        [
            "a:",
            "urn:a:b",
            "mailto:a@b",
            "http://a:b@c.d:80/e/f?g=/?#h",
            "ldap://[2001:db8::7]/c",
            "http://[v1.a:b]",
            "file:///a",
        ],
        ["", "a", "//a", "1:a", "http://a b", "http://a:b:c", "http://a?[", "a:%1", "http://[::1", "a:é", "a:\\b"],
    ),
    "iri": (["http://müller.de/ä?ö\ue000#ü", "a:\U00010300"], ["müller", "a:\ue000", "a:\uffff", "a:é é"]),
    "uri-reference": (
        ["", "#a", "?q", "//", "//a.b/c", "/", "a/b:c", "a:b", "///"],
        ["\\a", "1:b", "a b", "é", "#a#b"],
    ),
    "iri-reference": (["é", "//é/b", "#é"], ["é:b", "\\é"]),
    "uri-template": (
        ["", "/a/{b}{?c,d*}", "{+e:3}", "{%41.b}", "a'b\U0001f600"],
        ["{b", "}", "{}", "{a:0}", "{a b}", "%"],
    ),
    "json-pointer": (["", "/", "/a~0b~1c//é", '/i\\j"\n'], ["a", "/~", "/~2"]),
    "relative-json-pointer": (["0", "10#", "1/a~1b"], ["", "/a", "01", "-1", "0##"]),
    "regex": (
        ["", "a|b*?", "\\s+\\.", "^(?:a+|[^a-z_])$", "((a{3})?b{2,}){1,20}", "."],
        ["(", ")", "[", "a**", "^*", "+", "[]", "a{3,1}", "(?<a>b", "\\a", "\\"],
    ),
}
NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value", "next"],
}
SHAPES = {
    "oneOf": [
        {"properties": {"kind": {"const": "circle"}, "radius": {"type": "integer"}}, "required": ["kind", "radius"]},
        {"properties": {"kind": {"const": "line"}, "title": {"type": "string"}}, "required": ["kind"]},
    ],
    "type": "object",
}

NAMED = {"$dynamicAnchor": "n", "enum": [2]}
# Schema, values that are valid and can be written, values that are not valid.
ENFORCED: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": ["integer", "null"]}, [1, None], [1.5, "x"]),
    ({"enum": [1, "a", None, [1], {"a": 1}]}, [1, "a", None, [1], {"a": 1}], [2, True, [2], {"a": 2}]),
    ({"enum": [1, 5, "a"], "type": "integer", "minimum": 2}, [5], [1, "a"]),
    ({"const": {"title": 1}}, [{"title": 1}], [{"title": 2}, {}]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6]),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"type": "string"}, "a": {"minimum": 0}}, "required": ["b"]},
            ]
        },
        [{"a": 0, "b": "x"}],
        [{"a": -1, "b": "x"}, {"a": 1}, {"b": "x"}],
    ),
    ({"type": "integer", "anyOf": [{"minimum": 10, "maximum": 20}, {"maximum": -3}]}, [10, 20, -3], [0, 9, 21]),
    ({"$ref": "#/$defs/n", "minimum": 4, "$defs": {"n": {"type": "integer", "maximum": 10}}}, [4, 10], [3, 11]),
    ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, [{"value": 1, "next": None}], [{"value": 1, "next": 2}]),
    ({"$ref": "#it", "$defs": {"a": {"$anchor": "it", "type": "null"}}}, [None], [1]),
    ({"$dynamicRef": "#it", "$defs": {"a": {"$dynamicAnchor": "it", "type": "null"}}}, [None], [1]),
    ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}}, [None], [1]),
    (SHAPES, [{"kind": "circle", "radius": 1}, {"kind": "line"}], [{"kind": "circle"}, {"kind": "cube"}]),
    ({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]}, [-1, 6], [0, 5]),
    ({"type": "integer", "not": {"enum": [0, 3]}}, [1, -1, 4], [0, 3]),
    ({"type": "string", "not": {"const": "red"}}, ["re", "reds", "", "é"], ["red"]),
    ({"not": {"type": ["object", "array"]}}, [1, "a", None], [{}, []]),
    ({"not": {"not": {"type": "null"}}}, [None], [1]),
    (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["x"]},
            "else": {"properties": {"x": False}},
        },
        [{"kind": "a", "x": 1}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "b", "x": 1}],
    ),
    (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {}, "b": {"type": ["integer", "string"]}},
            "dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}},
        },
        [{"b": 1}, {"a": 1, "b": "x"}],
        [{"a": 1, "b": 1}],
    ),
    ({"type": "integer", "multipleOf": 7}, [0, 7, -14, 700], [1, 6, 71]),
    ({"type": "integer", "multipleOf": 5, "minimum": 3, "maximum": 12}, [5, 10], [0, 3, 15]),
    ({"type": "integer", "multipleOf": 12, "minimum": 30}, [36, 1200], [24, 0, 40]),
    ({"type": "integer", "multipleOf": 1021}, [0, -1021, 102100], [1, 1020]),
    ({"type": "number", "multipleOf": 0.01}, [0, 0.07, -4.25, 12.5, 1e6], [0.001, 4.257]),
    ({"type": "number", "multipleOf": 1.5, "exclusiveMaximum": 3}, [1.5, 0, -3], [3, 1, 0.5]),
    ({"type": "number", "not": {"type": "integer"}}, [0.5, -7.25], [1, 0, -3]),
    ({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 1}, [0, 0.5, 1], [0.25, 1.5]),
    ({"type": "number", "minimum": 0.1, "exclusiveMaximum": 0.3}, [0.1, 0.2], [0.3, 0.09, 1]),
    ({"type": "number", "minimum": 1e-9, "maximum": 2e-9}, [], [0, 3e-9]),
    ({"type": "integer", "exclusiveMinimum": 1.5, "maximum": 3.5}, [2, 3], [1, 4]),
    ({"type": "integer", "maximum": 2**63 - 1}, [5, -(10**18)], [2**63, 10**30]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "日本語", "🙂🙂"], ["a", "abcd"]),
    ({"type": "string", "minLength": 200}, ["x" * 200], ["x" * 199]),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4}, ["ab", "abcd"], ["a", "abcde", "AB"]),
    ({"type": "string", "pattern": "^https://"}, ["https://é"], ["http://x", " https://"]),
    ({"type": "string", "pattern": '^["\\\\\n\x01é]+$'}, ['"\\é', "\n", "\x01"], ["a", "\x02", "\t"]),
    ({"type": "string", "pattern": "foo"}, ["foo", "a foo b"], ["fo"]),
    ({"allOf": [{"pattern": "^[a-z]*$"}, {"pattern": "^.{2,3}$"}], "type": "string"}, ["ab", "abc"], ["a", "A1"]),
    ({"allOf": [{"pattern": "^(a|b)$"}, {"pattern": "^(b|c)$"}], "type": "string"}, ["b"], ["a", "c"]),
    ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}, ["https://a.bc/d?e=f"], ["x", ""]),
    ({"type": "string", "format": "color"}, ["anything"], [1]),
    (
        {"format": "email", "enum": [f"someone{number}@example.com" for number in range(20)] + ["a@@b"]},
        ["someone19@example.com"],
        ["a@@b"],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^[a-z]+_name$": {"type": "string"}, "^[a-z]+_id$": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{}, {"a_name": "b"}, {"a_id": 1}, {"a_name": "b", "c_id": 2}],
        [{"a_name": 1}, {"a_id": "b"}, {"a": 1}],
    ),
    (
        {
            "type": "object",
            "properties": {"x-a": {"type": "null"}},
            "patternProperties": {"^x-": {"type": "string"}},
            "additionalProperties": {"type": "integer"},
        },
        [{"x-b": "c"}, {"b": 1}, {"b": 1, "x-b": "c"}],
        [{"x-a": "c"}, {"x-a": None}, {"x-b": 1}, {"b": "c"}],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}},
            "propertyNames": {"pattern": "^[a-z]{2}$"},
            "additionalProperties": True,
        },
        [{"ab": 1}, {"bc": "d"}],
        [{"ab": "c"}, {"a": 1}, {"abc": 1}],
    ),
    (
        {"type": "string", "allOf": [{"pattern": "^[a-z]+$"}, {"pattern": "^.{2,4}$"}, {"not": {"const": "abc"}}]},
        ["ab", "abd", "abcd"],
        ["abc", "a", "abcde", "AB"],
    ),
    (
        {"type": "array", "items": {"type": ["integer", "null"]}, "contains": {"type": "null"}, "maxContains": 3},
        [[None], [1, None], [None, 2, None], [1, None, None, None]],
        [[1], [], [None, None, None, None]],
    ),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"type": "array", "prefixItems": [{"type": "null"}], "items": False}, [[], [None]], [[1], [None, None]]),
    ({"type": "array", "prefixItems": [{}, {"const": 1}], "minItems": 2}, [[5, 1]], [[5], [5, 2]]),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}, [[], ["a"], ["b", "a"]], [["a", "a"]]),
    ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}}, [[3], [1, 3, 1]], [[], [1, 2]]),
    (
        {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxContains": 1, "maxItems": 4},
        [[2], [1, 2, 1]],
        [[2, 2], [1], [2, 1, 2]],
    ),
    (
        {"type": "array", "items": {"enum": [0, 1]}, "contains": {"const": 1}, "minContains": 2, "maxContains": 2},
        [[0] * 20 + [1] + [0] * 20 + [1], [1, 1], [1, *[0] * 30, 1, 0]],
        [[], [0] * 20 + [1], [1, 0, 1, 1]],
    ),
    ({"type": "array", "contains": {"type": "null"}, "minContains": 0}, [[], [1]], ["x"]),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"]},
        [{"a": None, "b": 1}],
        [{"a": None}],
    ),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1, 'q"': 2}], [{"x": "y"}]),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        [{"a": None, "b": 1}, {"aa": 1}, {}],
        [{"a": 1}, {"b": None}],
    ),
    (
        {"type": "object", "patternProperties": {"^x": {"type": "string"}, "^y": {"type": "integer"}}},
        [{"x1": "a", "y": 1}, {}],
        [{"x1": 1}, {"y": "a"}],
    ),
    (
        {
            "type": "object",
            "propertyNames": {"enum": ["x", "y"]},
            "additionalProperties": {"type": "null"},
            "minProperties": 2,
        },
        [{"x": None, "y": None}],
        [{"x": None}, {"z": None, "x": None}],
    ),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{"ab": 1}, {}], [{"A": 1}]),
    (
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2},
        [{"a": 1, "c": 1}, {"b": 1, "c": 1}],
        [{"a": 1}, {}, {"a": 1, "b": 1, "c": 1}],
    ),
    (
        {
            "allOf": [{"properties": {"a": {}}}],
            "type": "object",
            "properties": {"b": {}},
            "unevaluatedProperties": False,
        },
        [{"b": 1, "a": 2}, {}],
        [{"c": 1}],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": {"type": "integer"}},
        [[None, 1, 2]],
        [[None, "x"], [1]],
    ),
    ({"type": "object", "properties": {}}, [{}], [1]),
    ({"title": "A", "description": "b", "default": 3, "examples": [1], "type": "null", "x-own": 1}, [None], [3]),
    # Schemas that differ only in members that are called as annotations are (xgrammar takes them for the same).
    (
        {
            "type": "object",
            "properties": {
                "a": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
                "b": {"type": "object", "properties": {"title": {"type": "integer"}}, "required": ["title"]},
            },
            "required": ["a", "b"],
        },
        [{"a": {"title": "x"}, "b": {"title": 1}}],
        [{"a": {"title": "x"}, "b": {"title": "x"}}],
    ),
    # Schemas with URIs of their own.
    (
        {
            "$id": "https://example.com/a/root",
            "$ref": "b/item#/$defs/x",
            "$defs": {"i": {"$id": "b/item", "$defs": {"x": {"$ref": "../c"}}}, "c": {"$id": "c", "enum": [1, 2]}},
        },
        [1, 2],
        [3, "c"],
    ),
    (
        {
            "anyOf": [{"$ref": "urn:x:1#n"}, {"$ref": "#n"}],
            "$defs": {"a": {"$id": "urn:x:1", "$defs": {"b": {"$anchor": "n", "const": 1}}}, "c": NAMED},
        },
        [1, 2],
        [3],
    ),
    (
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": "n",
            "$defs": {"n": {"$id": "n", "$ref": "#/$defs/m", "$defs": {"m": {"enum": [1]}}}, "m": {"enum": [2]}},
        },
        [1],
        [2],
    ),
    (
        {"$dynamicRef": "#n", "$defs": {"a": {"$id": "a", "$anchor": "n", "enum": [1]}, "c": NAMED}},
        [2],
        [1],
    ),
    # Older drafts.
    (
        {"items": [{"type": "null"}], "additionalItems": {"type": "integer"}, "type": "array"},
        [[None, 1]],
        [[1], [None, "x"]],
    ),
    (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependencies": {"a": ["b"]}},
        [{"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), ENFORCED)
def test_valid_values_can_be_written_and_others_cannot(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    grammar = of_schema(schema)
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


def test_members_come_in_any_order_where_they_are_few() -> None:
    schema = {"type": "object", "properties": dict.fromkeys("abcd", True), "required": ["d", "b"], "maxProperties": 3}
    grammar, validator = of_schema(schema, has_free_order=True), Judge(schema)
    for count in range(5):
        for names in itertools.permutations("abcd", count):
            value = dict.fromkeys(names, 1)
            assert accepts_value(grammar, value) == validator.is_valid(value), names
    many = {"type": "object", "properties": of_many(9, lambda _: True)}
    with pytest.raises(SchemaError, match="property_order is free for up to 8 members, got 9"):
        grammar_of(many, has_free_order=True)


NULLS: dict[str, Any] = {"contains": {"type": "null"}}
ONES: dict[str, Any] = {"contains": {"const": 1}}


@pytest.mark.parametrize(
    "schema",
    [
        NULLS | {"minContains": 2, "maxContains": 3},
        NULLS | {"minContains": 0, "maxContains": 1},
        NULLS | {"prefixItems": [{"const": 1}, {}], "maxContains": 2},
        NULLS | {"uniqueItems": True, "maxContains": 2},
        {"contains": {}, "minContains": 2, "maxContains": 3},
        {"contains": {"type": ["null", "integer"]}, "maxContains": 2, "maxItems": 4},
        {"allOf": [NULLS, ONES]},
        {"allOf": [NULLS | {"maxContains": 1}, ONES | {"minContains": 0, "maxContains": 1}]},
    ],
)
def test_items_that_are_contained_may_be_anywhere_among_the_first(schema: dict[str, Any]) -> None:
    schema = {"type": "array", "items": {"enum": [0, 1, None, "a"]}} | schema
    grammar, validator = of_schema(schema), Judge(schema)
    for length in range(5):
        for items in itertools.product([0, 1, None, "a"], repeat=length):
            assert accepts_value(grammar, list(items)) == validator.is_valid(list(items)), items


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_what_its_rfc_says(name: str) -> None:
    schema = {"type": "string", "format": name}
    grammar = of_schema(schema)
    valid, invalid = FORMATS[name]
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


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"properties": {"a": {"items": {"type": "integer"}, "uniqueItems": True, "type": "array"}}},
        "/properties/a/uniqueItems",
    ),
    ({"type": "array", "items": {"enum": list(range(20))}, "uniqueItems": True}, "/uniqueItems"),
    ({"type": "integer", "multipleOf": 0.123456789}, "/multipleOf"),
    ({"type": "number", "multipleOf": 1e-20}, "/multipleOf"),
    ({"type": "integer", "multipleOf": 0}, "/multipleOf"),
    ({"type": "string", "pattern": "^(?=x)"}, "/pattern"),
    ({"type": "string", "pattern": "^[a"}, "/pattern"),
    ({"allOf": [{"pattern": "a+b"}, {"pattern": "c+d"}], "type": "string"}, "/allOf/1/pattern"),
    ({"type": "string", "not": {"pattern": "a"}}, "/not/pattern"),
    (
        {"type": "array", "allOf": [{"contains": {"const": number}} for number in range(10)]},
        "/allOf/9/contains",
    ),
    ({"$ref": "https://example.com/x.json"}, "/$ref"),
    ({"$ref": "#/$defs/none"}, "/$ref"),
    ({"$ref": "#none"}, "/$ref"),
    ({"$ref": "#"}, ""),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
    ({"properties": {"a": {"$id": "https://example.com/a", "$ref": "#/x"}}}, "/properties/a/$id"),
    ({"$ref": "b", "$defs": {"a": {"$id": "b"}, "b": {"$id": "b"}}}, "/$defs/a/$id"),
    ({"$dynamicRef": "#n", "$dynamicAnchor": "n", "$defs": {"a": {"$id": "b", "$dynamicAnchor": "n"}}}, "/$dynamicRef"),
    ({"$ref": "#/x/y", "x": {"y": {"$id": "z", "type": "null"}}}, "/$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$id": 3}}}, "/$defs/a/$id"),
    ({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]}, "/oneOf"),
    ({"type": "object", "minProperties": 3, "additionalProperties": {"type": "null"}}, "/minProperties"),
    ({"enum": [2**60]}, "/enum"),
    ({"const": float("inf")}, "/const"),
    ({"enum": []}, "/enum"),
    ({"type": "nonsense"}, "/type"),
    ({"type": "string", "minLength": "3"}, "/minLength"),
    ({"type": "string", "minLength": float("inf")}, "/minLength"),
    ({"type": "array", "items": [3]}, "/items/0"),
    ({"anyOf": {}}, "/anyOf"),
    ({"required": "a"}, "/required"),
    ({"properties": []}, "/properties"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
    ({"type": "integer", "minimum": 3, "maximum": 2}, ""),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, ""),
    ({"type": "string", "maxLength": 10**9}, "/maxLength"),
    ({"properties": {"a~/b": {"type": "what"}}}, "/properties/a~0~1b/type"),
]


@pytest.mark.parametrize(("schema", "pointer"), REFUSED)
def test_what_is_not_enforced_is_refused_with_the_path_of_its_keyword(schema: dict[str, Any], pointer: str) -> None:
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
