"""Random calls in every format: what a description writes is read back, however the text is cut."""

import json
import random
from typing import Any

import pytest

from lmdeploy.templates.tool_call_formats import TOOL_CALL_FORMATS, BareObjects, QuotedArguments, TaggedArguments
from openai_gateway.tools.formats import Readers
from openai_gateway.tools.parser import ToolCallParser
from tests.support.tool_calls import parse, streamed

CALLS, SAMPLE = 200, 12
FUNCTIONS = ("get_weather", "add", "math.sqrt", "read-file")
UNKNOWN = "not_offered"
NESTED = ("</think>", "</tool_call>", "</function>", "]", "}}", "<tool_call>", "```")
LETTERS = list("ab 0123xyz<>{}[]()&,:=é北🦜\n\t\\\"'")
LETTERS += ["</", "<|", "```", "; ", "true", "null", "<tool_", "functions."]
FORMATS: dict[str, Any] = {}  # by the first of their names
for _name, _named in TOOL_CALL_FORMATS.items():
    if _named.formats[0] not in FORMATS.values():
        FORMATS[_name] = _named.formats[0]
UNTAGGED = {name for name, form in FORMATS.items() if getattr(form, "is_bare", isinstance(form, BareObjects))}
UNTAGGED |= {name for name, form in FORMATS.items() if not getattr(form, "is_marked", True)}
KINDS = ("string", "string", "integer", "number", "boolean", "array", "object", "nullable")


def tags_of(form: Any) -> list[str]:
    """Return the marks that a text cannot hold in this format."""
    match form:
        case TaggedArguments():
            return [form.value_tag]
        case QuotedArguments():
            return [form.quote]
    return []


def text(rng: random.Random, form: Any) -> str:
    while True:
        made = "".join(rng.choice(LETTERS) for _ in range(rng.choice((0, 1, 3, 8))))
        if not any(tag in made for tag in tags_of(form)):
            return made


def value(rng: random.Random, form: Any, kind: str, depth: int = 0) -> Any:
    match kind:
        case "string":
            return text(rng, form)
        case "integer":
            return rng.choice((0, -1, 7, 10**12))
        case "number":
            return rng.choice((0.5, -2.25, 1e-07, 1e22, 3.0))
        case "boolean":
            return rng.random() < 0.5
        case "nullable":
            return rng.choice((None, 5))
    if depth == 2:
        return None
    inner = [value(rng, form, rng.choice(KINDS), depth + 1) for _ in range(rng.randrange(3))]
    return inner if kind == "array" else {f"k{number}": value for number, value in enumerate(inner)}


def described(kind: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer"}, {"type": "null"}]} if kind == "nullable" else {"type": kind}


def calls_of(rng: random.Random, name: str, *, has_unknown: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return one to three calls, and the schemas of their functions."""
    form, calls, schemas = FORMATS[name], [], {}
    for function in rng.sample(FUNCTIONS, rng.choice((1, 1, 2, 3))):
        kinds = {f"arg{number}": rng.choice(KINDS) for number in range(rng.randrange(4))}
        arguments = {key: value(rng, form, kind) for key, kind in kinds.items()}
        for key, kind in kinds.items():
            nested = "".join(rng.choices((*NESTED, *LETTERS), k=4))
            if kind == "string" and rng.random() < 0.5 and not any(tag in nested for tag in tags_of(form)):
                arguments[key] = nested
        calls.append((function, arguments))
        schemas[function] = {"type": "object", "properties": {key: described(kind) for key, kind in kinds.items()}}
    if has_unknown:
        calls.insert(rng.randrange(len(calls) + 1), (UNKNOWN, {}))
    written = [
        {"id": f"call{number:05d}", "function": {"name": function, "arguments": arguments}}
        for number, (function, arguments) in enumerate(calls)
    ]
    return written, schemas


def assert_read_back(name: str, seed: int) -> int:
    """Write calls, read them back, and return how many there were."""
    form = FORMATS[name]
    calls, schemas = calls_of(random.Random(seed), name, has_unknown=False)
    expected = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    written = form.write(calls)
    before = "" if name in UNTAGGED else "Well. 1 < 2"

    def streamed_calls(pieces: list[str]) -> tuple[str, list[tuple[str, Any]]]:
        text, found = streamed(pieces, ToolCallParser(schemas, parser=name))
        return text, [(name, json.loads(arguments)) for name, arguments in found]

    whole = parse(before + written, schemas, name)
    assert (whole.text, [(call.name, json.loads(call.arguments)) for call in whole.calls]) == (before, expected)
    assert streamed_calls(list(before + written)) == (before, expected)
    raw = written.encode()
    for cut in range(1, len(raw)):  # the engine sends whole characters: half of one waits
        first = raw[:cut].decode(errors="ignore")
        assert streamed_calls([first, written[len(first) :]]) == ("", expected), (cut, written)
    return len(calls)


@pytest.mark.parametrize("name", FORMATS)
def test_random_calls_are_read_back_whole_and_cut_at_every_byte(name: str, *, all_cases: bool) -> None:
    total = seed = 0
    while total < (CALLS if all_cases else SAMPLE):
        total, seed = total + assert_read_back(name, seed), seed + 1


def test_no_mark_begins_as_another() -> None:
    tags = list(Readers({"f": {}}).openings)
    for tag in tags:
        assert [other for other in tags if other.startswith(tag)] == [tag]
