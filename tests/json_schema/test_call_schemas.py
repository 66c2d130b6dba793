"""Schemas of functions that `tools.bench.structured.calls` measures: enforced in full, and what is written is valid."""

import json
import random

import pytest
from jsonschema import Draft202012Validator

from lmdeploy.json_schema import enforceable
from tests.support.grammar_walk import of_schema, walk
from tests.support.random_schemas import keywords_of
from tools.bench.structured.schemas import CALL_SCHEMAS

WALKS = 3


@pytest.mark.alike(most=20)
@pytest.mark.parametrize("name", CALL_SCHEMAS)
def test_what_is_written_under_a_schema_of_a_function_is_valid(name: str) -> None:
    schema = CALL_SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    grammar = of_schema(enforceable(schema))
    texts = [walk(grammar, random.Random(f"{name} {number}")) for number in range(WALKS)]
    for text in texts:
        assert text is not None  # all texts and lists have bounds
        validator.validate(json.loads(text))


def test_the_schemas_have_what_tools_ask_for() -> None:
    assert len(CALL_SCHEMAS) == 60
    found = set().union(*(keywords_of(schema) for schema in CALL_SCHEMAS.values()))
    assert found >= {
        *("$defs", "$ref", "additionalProperties", "anyOf", "enum", "format", "items", "maxItems", "maxLength"),
        *("maxProperties", "maximum", "minItems", "minimum", "pattern", "properties", "required", "type"),
    }
