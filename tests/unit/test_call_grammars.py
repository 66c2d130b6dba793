"""Whatever a format's grammar lets a model write is read as calls that fit their schemas."""

import json
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest
import xgrammar

from lmdeploy.grammars import translated
from lmdeploy.json_schema import SchemaError
from lmdeploy.templates.tool_call_formats import TOOL_CALL_FORMATS
from lmdeploy.templates.tool_call_formats.grammar import FunctionSchema
from openai_gateway.reasoning_grammar import or_calls
from tests.support.grammar_walk import of_tag, walk
from tests.support.random_schemas import RandomSchemas
from tests.support.tool_calls import parse

FORMATS: dict[str, Any] = {}  # by the first of their names
for _name, _named in TOOL_CALL_FORMATS.items():
    if _named.formats[0] not in FORMATS.values():
        FORMATS[_name] = _named.formats[0]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 4},
        "unit": {"enum": ["celsius", 'it\'s "x"']},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "hours": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 2},
        "place": {
            "type": "object",
            "properties": {"at": {"type": "number"}, "b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Yes"}]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "days", "place"],
    "additionalProperties": False,
    "$defs": {"Yes": {"type": "boolean"}},
}
SCHEMAS: dict[str, Any] = {
    "get_weather": WEATHER,
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
FUNCTIONS = [FunctionSchema(name, schema, is_strict=True) for name, schema in SCHEMAS.items()]


def compiled(grammar: dict[str, Any]) -> xgrammar.CompiledGrammar:
    return of_tag(translated(json.dumps({"type": "structural_tag", "structural_tag": grammar})).text)


def babbled(grammar: xgrammar.CompiledGrammar, seed: int) -> str | None:
    """Return a text that the grammar allows, chosen at random; None: it continued for too long."""
    text = walk(grammar, random.Random(seed))
    return None if text is None else text.decode(errors="replace")  # xgrammar has surrogates in [^...]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_whatever_a_grammar_allows_is_read_as_calls_that_fit(name: str, several: bool) -> None:
    grammar = compiled(FORMATS[name].grammar(FUNCTIONS).calls(several=several))
    for seed in range(12):
        written = babbled(grammar, seed)
        assert written is not None
        found = parse(written, SCHEMAS, name)
        assert (len(found.calls) == 1) if not several else found.calls, written
        assert found.text.strip() == "", written
        for call in found.calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("name", FORMATS)
def test_calls_in_text_are_held_to_their_schemas(name: str) -> None:
    form = FORMATS[name]
    grammar = form.grammar(FUNCTIONS).text(several=True)
    if grammar is None:
        assert name in {"glm4", "llama4_pythonic", "xlam"}  # their calls are not known by anything
        return
    allowed = compiled(grammar)

    def takes(text: str) -> bool:
        return bool(xgrammar.GrammarMatcher(allowed).accept_string(text))

    call = babbled(compiled(form.grammar(FUNCTIONS).calls(several=False)), 1)
    assert call is not None
    assert takes("It is 3 < 5 {here} [1]. " + call)
    assert takes("No call.")
    named = next(known for known in SCHEMAS if known in call)
    assert not takes("Well. " + call.replace(named, "fly"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_response_is_a_text_that_is_held_or_a_call(name: str) -> None:
    calls = FORMATS[name].grammar(FUNCTIONS).calls(several=False)
    requested = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}
    grammar = or_calls(requested, calls, None)
    assert grammar is not None
    either = compiled(grammar["structural_tag"])
    call = babbled(compiled(calls), 3)
    for text, is_taken in (('"yes"', True), (call, True), ('"maybe"', False), ("Well", False)):
        assert text is not None
        assert bool(xgrammar.GrammarMatcher(either).accept_string(text)) == is_taken, text


def random_function(seed: int) -> FunctionSchema | None:
    """Return a strict function with random parameters, which may be refused."""
    try:
        return FunctionSchema("f", RandomSchemas(seed, 2).schema() | {"type": "object"}, is_strict=True)
    except SchemaError:
        return None


RANDOM = [function for seed in range(120) if (function := random_function(seed))]


@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_functions_with_random_schemas_fit_them_or_the_schemas_are_refused(
    name: str, *, all_cases: bool
) -> None:
    counts: Counter[str] = Counter()
    # A sample has other functions for each format.
    functions = list(enumerate(RANDOM))[0 if all_cases else list(FORMATS).index(name) % 4 :: 1 if all_cases else 4]
    for seed, function in functions:
        try:
            grammar = FORMATS[name].grammar([function]).calls(several=False)
        except ValueError as error:
            counts["refused" if str(error).startswith(("the keyword", "the type", "the name")) else str(error)] += 1
            continue
        allowed = compiled(grammar)
        validator = jsonschema.Draft202012Validator(
            function.parameters, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        for attempt in range(3):
            written = babbled(allowed, seed * 100 + attempt)
            if written is None:
                counts["endless"] += 1
                continue
            found = parse(written, {"f": function.parameters}, name)
            assert len(found.calls) == 1, (written, function.parameters)
            wrong = next(validator.iter_errors(json.loads(found.calls[0].arguments)), None)
            assert wrong is None, (written, found.calls[0].arguments, wrong.message, function.parameters)
            counts["valid"] += 1
    assert counts["valid"] > len(functions), counts
    assert counts.keys() <= {"valid", "refused", "endless"}, counts
