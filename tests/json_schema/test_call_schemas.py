"""60 schemas of functions, as real tools ask for, are enforced in full: generated text is valid.

Every value of them ends within some hundred tokens: texts and lists have bounds.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.grammar_walk import of_schema, walk
from tests.support.random_schemas import keywords_of

CALL_SCHEMAS: dict[str, Any] = dict(map(json.loads, (Path(__file__).parent / "calls.jsonl").open()))
WALKS = 3


@pytest.mark.alike(max_cases=20)
@pytest.mark.parametrize("name", CALL_SCHEMAS)
def test_what_is_written_under_a_schema_of_a_function_is_valid(name: str) -> None:
    schema = CALL_SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    grammar = of_schema(schema)
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
