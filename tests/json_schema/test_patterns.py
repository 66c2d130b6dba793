"""Regular expressions: read as `re` reads them, and kept to by the grammar engine."""

import contextlib
import itertools
import json
import random
import re

import jsonschema_rs
import pytest

from lmdeploy.json_schema import charsets
from lmdeploy.json_schema.errors import Budget, SchemaError
from lmdeploy.json_schema.expressions import body_of, full_match
from lmdeploy.json_schema.languages import (
    Chars,
    Language,
    TooAlikeError,
    choice,
    combined,
    concatenation,
    matches,
    repeat,
)
from lmdeploy.json_schema.patterns import PatternError, language_of
from tests.support.grammar_walk import accepts, accepts_value, of_rules, of_schema, walk

SHORT = ["".join(letters) for length in range(6) for letters in itertools.product("abé", repeat=length)]
ATOMS = [
    *("a", "b", "é", "日", "🙂", " ", "-", r"\.", r"\d", r"\w", r"\s", r"\S", r"\D", r"\W", ".", "[a-f]", "[^a-f]"),
    *("[é-ü]", r"[^\s@]", r"[\w.-]", "[一-龠]", "[^日]", "[\u0700-\u1fff]", r"[^\d,]", '"', r"[\^-bé]", r"[\x01-A]"),
]
NEAR_BOUNDARIES = '\n\t\x01"\\ab🙂é日 -.5_Zü\u0800\u07ff\ud7ff\ue000\uffff\U00010000\u1000@,'


def random_language(chance: random.Random, depth: int) -> Language:
    kind = chance.random()
    if depth == 0 or kind < 0.25:
        return Chars(charsets.of(chance.choice(["a", "b", "ab", "é", "aé"])))
    if kind < 0.5:
        return concatenation([random_language(chance, depth - 1) for _ in range(chance.randint(0, 3))])
    if kind < 0.7:
        return choice([random_language(chance, depth - 1) for _ in range(chance.randint(1, 3))])
    low = chance.randint(0, 3)
    return repeat(random_language(chance, depth - 1), low, chance.choice([None, low, low + 1, low + 2]))


def random_pattern(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if depth > 3 or kind < 0.35:
        return chance.choice(ATOMS)
    if kind < 0.6:
        return random_pattern(chance, depth + 1) + random_pattern(chance, depth + 1)
    if kind < 0.75:
        return f"({random_pattern(chance, depth + 1)}|{random_pattern(chance, depth + 1)})"
    count = chance.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])
    return f"(?:{random_pattern(chance, max(depth, 2) + 1)}){count}"


@pytest.mark.alike(max_cases=3)
@pytest.mark.parametrize("seed", range(20))
def test_the_engine_takes_the_strings_of_a_language_and_no_others(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        language = random_language(chance, 4)
        grammar = of_rules(rules := f"root ::= {body_of(language)}")
        wrong = [text for text in SHORT if accepts(grammar, text) != matches(language, text)]
        assert wrong == [], rules


@pytest.mark.alike(max_cases=3)
@pytest.mark.parametrize("seed", range(20))
def test_what_the_engine_writes_for_a_pattern_is_found_by_python_too(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(15):
        pattern = chance.choice(["^", ""]) + random_pattern(chance) + chance.choice(["$", ""])
        language = language_of(pattern)
        schema = {"type": "string", "pattern": pattern}
        low, high = sorted(chance.choices(range(8), k=2))
        grammar, bounded, whole = of_schema(schema), None, of_rules(full_match(pattern))
        with contextlib.suppress(SchemaError):  # no string is of this length
            bounded = of_schema(schema | {"minLength": low, "maxLength": high})
        for _ in range(6):
            text, short, full = (form and walk(form, chance, 300) for form in (grammar, bounded, whole))
            if text is not None and len(text) < 40:  # in which `re` takes no time without end
                assert re.search(pattern, json.loads(text)), pattern
            if short is not None:
                assert re.search(pattern, json.loads(short)), pattern
                assert low <= len(json.loads(short)) <= high, (pattern, low, high)
            if full is not None and len(full) < 40:
                assert re.fullmatch(pattern, full.decode()), pattern
        for _ in range(15):
            near = "".join(chance.choices(NEAR_BOUNDARIES, k=chance.randint(0, 5)))
            assert accepts_value(grammar, near) == matches(language, near), (pattern, near)
            assert not matches(language, near) or re.search(pattern, near), (pattern, near)


@pytest.mark.alike(max_cases=3)
@pytest.mark.parametrize("seed", range(20))
def test_strings_of_several_languages_and_of_no_other_are_these_and_no_others(seed: int) -> None:
    chance = random.Random(seed)
    found = 0
    for _ in range(20):
        one, other, unwanted = (random_language(chance, 3) for _ in range(3))
        with contextlib.suppress(TooAlikeError):
            language = combined([one, other], [unwanted], charsets.EVERY, Budget(1 << 40), "")
            for text in SHORT:
                is_in = matches(one, text) and matches(other, text) and not matches(unwanted, text)
                assert matches(language, text) == is_in, (one, other, unwanted)
            found += 1
    assert found > 10


@pytest.mark.parametrize("pattern", [r"^\p{L}+$", r"^\P{gc=Letter}*$", r"^[\p{Lu}\p{digit}]$", r"^[^\p{L}\p{M}]+$"])
def test_categories_of_characters_are_those_of_unicode(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    grammar, validator, chance = of_schema(schema), jsonschema_rs.Draft202012Validator(schema), random.Random(0)
    for text in filter(None, (walk(grammar, chance) for _ in range(100))):
        assert validator.is_valid(json.loads(text)), text
    for sample in ["a", "éß", "Ä", "日本", "٣", "1", " ", "🙂", "\u0301"]:
        assert accepts_value(grammar, sample) == validator.is_valid(sample), sample


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("^(?!a).*", "looks ahead"),
        ("(?<=a)b", "looks behind"),
        (r"(a)\1", r"\1"),
        (r"(?<x>a)\k<x>", r"\k"),
        (r"^\p{Script=Greek}+$", r"\p"),
        ("(?i)a", "flags"),
        ("*a", "repeats nothing"),
        ("a)", ") without a ("),
        ("[]a]", "empty class"),
        ("[z-a]", "backwards"),
        ("a{99999}", "20000 times"),
        ("((a{1,100}){1,100}){1,100}", "written out"),
        ("(" * 60 + "a" + ")" * 60, "deeper"),
        ("a" * 5000, "longer"),
        ("a\\", "backslash"),
    ],
)
def test_an_expression_that_is_none_or_is_not_enforced_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=re.escape(why)):
        language_of(pattern)
