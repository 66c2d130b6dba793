"""Random schemas with every keyword: what the grammar engine writes under them is valid, or they are refused."""

import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from lmdeploy.json_schema import SchemaError
from tests.support.grammar_walk import Judge, of_schema, walk
from tests.support.random_schemas import RandomSchemas

SEEDS = range(1000)
BLOCK = 25
WALKS = 12

# The assertions, applicators and references of JSON Schema 2020-12.
KEYWORDS = {
    *("$anchor", "$defs", "$dynamicRef", "$ref", "additionalProperties", "allOf", "anyOf", "const", "contains"),
    *("dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "if"),
    *("items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems"),
    *("minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties"),
    *("prefixItems", "properties", "propertyNames", "required", "then", "type", "unevaluatedItems"),
    *("unevaluatedProperties", "uniqueItems"),
}


@pytest.mark.alike(max_cases=6)
@pytest.mark.parametrize("first", SEEDS[::BLOCK])
def test_what_is_written_under_a_random_schema_is_valid_or_the_schema_is_refused(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        schema = RandomSchemas(seed).schema()
        try:
            grammar = of_schema(schema)
        except SchemaError as error:
            counts["refused" if error.pointer[:1] in ("", "/") else "odd pointer"] += 1
            continue
        validator = Judge(schema, format_checker=Judge.FORMAT_CHECKER)
        chance = random.Random(seed)
        for _ in range(WALKS):
            text = walk(grammar, chance)
            if text is None:
                counts["endless"] += 1
                continue
            value = json.loads(text.decode("utf-8", "replace"))
            wrong = next(validator.iter_errors(value), None)
            assert wrong is None, (seed, text, wrong.message, schema)
            counts["valid"] += 1
    assert counts["valid"] > 2 * BLOCK, counts
    assert counts["odd pointer"] == 0, counts
    assert counts["endless"] < counts["valid"] / 4, counts


def test_the_random_schemas_have_every_keyword() -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        text = json.dumps(RandomSchemas(seed).schema())
        found.update(keyword for keyword in KEYWORDS if f'"{keyword}": ' in text)
    assert {keyword: count for keyword in KEYWORDS if (count := found[keyword]) < 10} == {}


_WRITE_GRAMMARS = """
from lmdeploy.json_schema import grammar_of
from tests.support.random_schemas import RandomSchemas
for seed in (46, 155, 446, 536, 569, 617, 1153, 1274):  # languages are combined in them
    print(grammar_of(RandomSchemas(seed).schema()))
"""


def test_the_grammar_of_a_schema_is_the_same_in_every_process() -> None:
    """Hashes of strings, and of None by its address, differ between processes."""

    def grammars(seed: int) -> str:
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        return subprocess.check_output([sys.executable, "-c", _WRITE_GRAMMARS], env=environment, text=True)

    first = grammars(0)
    assert all(grammars(seed) == first for seed in (1, 2))
