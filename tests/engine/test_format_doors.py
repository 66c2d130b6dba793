"""A response format means the same through every door: to the engine as Triton passes it, to `pipeline`, in a tag."""

import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.turbomind.engine import EngineOutput
from tests.support.tiny_models import WHOLE_VOCABULARY, make_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    sizes: dict[str, Any] = {"max_position_embeddings": 512, "vocab_size": WHOLE_VOCABULARY}
    directory = make_tiny_llama(tmp_path_factory.mktemp("doors") / "model", **sizes)
    with pipeline(str(directory), backend_config=TurbomindEngineConfig(cache_max_entry_count=256)) as loaded:
        yield loaded


class Dictation:
    """A logits processor that has a text written, where the format lets it."""

    def __init__(self, model: AsyncEngine, text: str) -> None:
        self._tokens = [*model.tokenizer.encode(text, add_bos=False), model.tokenizer.eos_token_id]
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        logits[self._tokens[min(self._step, len(self._tokens) - 1)]] += 1000
        self._step += 1
        return logits


def by_pipeline(model: AsyncEngine, config: GenerationConfig) -> str:
    text: str = model("Go on:", config, do_preprocess=False).text
    return text


def by_engine(model: AsyncEngine, config: GenerationConfig) -> str:
    """Pass the text of the format to the engine, as Triton does."""
    outputs: queue.Queue[EngineOutput] = queue.Queue()
    model.engine.submit(model.tokenizer.encode("Go on:"), config, outputs.put, stream=False)
    output = outputs.get(timeout=60)
    if output.finish_reason == "error":
        raise ValueError(output.error)
    return output.text


def in_tag(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "structural_tag": content}


Door = tuple[Callable[[AsyncEngine, GenerationConfig], str], Callable[[Any], dict[str, Any]]]
EXPRESSIONS: dict[str, Door] = {
    "engine": (by_engine, lambda pattern: {"type": "regex_schema", "regex_schema": pattern}),
    "pipeline": (by_pipeline, lambda pattern: {"type": "regex_schema", "regex_schema": pattern}),
    "tag": (by_engine, lambda pattern: in_tag({"type": "regex", "pattern": pattern})),
    "lark": (by_engine, lambda pattern: {"type": "lark", "lark": "start: /" + pattern.replace("/", r"\/") + "/"}),
}
SCHEMAS: dict[str, Door] = {
    "engine": (by_engine, lambda schema: {"type": "json_schema", "json_schema": {"schema": schema}}),
    "pipeline": (by_pipeline, lambda schema: {"type": "json_schema", "json_schema": {"schema": schema}}),
    "tag": (by_engine, lambda schema: in_tag({"type": "json_schema", "json_schema": schema})),
    "lark": (by_engine, lambda schema: {"type": "lark", "lark": f"start: %json {json.dumps(schema)}"}),
}


def allowed(model: AsyncEngine, door: Door, given: Any, texts: list[str]) -> list[str]:
    """Return those of some texts that a format lets through; a refusal is a `ValueError`."""
    respond, form = door
    found = []
    for text in texts:
        config = GenerationConfig(
            max_new_tokens=40, response_format=form(given), logits_processors=[Dictation(model, text)]
        )
        found += [text] if respond(model, config) == text else []
    return found


@pytest.mark.parametrize("door", EXPRESSIONS)
@pytest.mark.parametrize(
    ("pattern", "accepted", "others"),
    [
        (r"[\^a]", ["^", "a"], ["b", "]"]),
        (r"[\^-bé]x", ["^x", "_x", "éx"], ["cx", "x"]),
        (r"[\x01A]!", ["\x01!", "A!"], ["\x1a!", "!"]),
        (r"\d+", ["12"], ["٣", "1٣"]),
        (r"\w\s", ["a ", "_\t"], ["é ", "-"]),
        ("^ab$", ["ab"], ["b", "abb"]),
        ("^a|b$", ["a", "b"], ["ab", "^a"]),
        ("(|a)b(c||d)", ["b", "ab", "bc", "abd"], ["a", "bcd"]),
        ("(ab|ac|a)*d?", ["", "abacad", "aab"], ["abc", "dd"]),
        ("(ab){2,}(cd)?", ["abab", "abababcd"], ["ab", "ababc"]),
        ("(?:a|bc){0,2}?", ["", "abc", "bcbc"], ["aaa"]),
        ("(?P<x>a)b", ["ab"], ["a"]),
        ("(?i)k[^s]é", ["kaé", "Kaé", "\u212aaÉ"], ["ksé", "kSé", "k\u017fé"]),
        ("(?sx) a . b # c", ["a\nb", "axb"], ["a . b"]),
        ("a/b", ["a/b"], ["ab"]),
        ("[[]{2}|a{2", ["[[", "a{2"], ["a"]),
        ('{"a": [0-9]}', ['{"a": 1}'], ['{"a": }']),
        ("a.b", ["aéb", "a🙂b"], ["a\nb"]),
        ("[é-日]|🙂", ["é", "日", "🙂"], ["z", "本本"]),
    ],
)
def test_an_expression_allows_the_same_texts(
    model: AsyncEngine, door: str, pattern: str, accepted: list[str], others: list[str]
) -> None:
    assert allowed(model, EXPRESSIONS[door], pattern, accepted + others) == accepted


@pytest.mark.parametrize("door", EXPRESSIONS)
@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)a", "looks ahead"),
        ("(?<!a)b", "looks behind"),
        (r"\bword\b", r"has \b"),
        (r"(a)\1", r"has \1"),
        ("a^b", "matches no text"),
        ("[[:alpha:]]", "has [: in a class"),
        ("a{1,4294967297}", "repeats more than 20000 times"),
        (r"\p{Greek}", r"has \p"),
        ("a{,3}", "has {, which"),
        ("a{3,2}", "counts down"),
        ("a**", "repeats what is repeated already"),
        ("((", "a ( without a )"),
        ("[a", "a [ without a ]"),
        (r"\ud800", "half of a surrogate pair"),
        ("(^a)*", "repeats a group with ^"),
    ],
)
def test_an_expression_is_refused_for_the_same_reason(model: AsyncEngine, door: str, pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"response_format.*") as rejected:
        allowed(model, EXPRESSIONS[door], pattern, ["a"])
    assert reason in str(rejected.value)


def numbers(**bounds: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"enum": [1, 2]}} | bounds


@pytest.mark.parametrize("door", SCHEMAS)
@pytest.mark.parametrize(
    ("schema", "accepted", "others"),
    [
        (numbers(uniqueItems=True), ["[]", "[1, 2]"], ["[1,1]", "[1, 1]"]),
        (numbers(contains={"const": 2}), ["[1, 2]", "[2]"], ["[]", "[1]"]),
        ({"not": {"type": ["object", "array", "string", "number"]}}, ["null", "true"], ["1", '"a"']),
        ({"type": "string", "pattern": r"[\^a]$"}, ['"b^"', '"a"'], ['"b"']),
        ({"type": "string", "pattern": "^é$", "maxLength": 3}, ['"é"'], ['"e"']),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, ["1", "3"], ["2"]),
        ({"if": {"const": 1}, "then": False, "enum": [1, 2]}, ["2"], ["1"]),
        ({"enum": ["a", None], "type": "string"}, ['"a"'], ["null"]),
        ({"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 14}, ["5", "10"], ["1", "15"]),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
            ["{}", '{"b": 1}', '{"a": null, "b": 1}'],
            ['{"a": 1}'],
        ),
        ({"type": "string", "maxLength": 2}, ['"ab"', '""'], ['"abc"', '"\n"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"']),
    ],
)
def test_a_schema_allows_the_same_texts(
    model: AsyncEngine, door: str, schema: dict[str, Any], accepted: list[str], others: list[str]
) -> None:
    assert allowed(model, SCHEMAS[door], schema, accepted + others) == accepted


@pytest.mark.parametrize("door", SCHEMAS)
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems: is enforced where"),
        ({"properties": {"a~/b": {"type": "what"}}}, "#/properties/a~0~1b/type: "),
        ({"type": "string", "pattern": "(?=x)"}, "#/pattern: the expression '(?=x)' looks ahead"),
        ({"$ref": "https://example.com/x.json"}, "#/$ref: "),
        (numbers(uniqueItems=True, minItems=3), "no value meets this schema"),
    ],
)
def test_a_schema_is_refused_for_the_same_reason(
    model: AsyncEngine, door: str, schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=r"response_format.*") as rejected:
        allowed(model, SCHEMAS[door], schema, ["1"])
    assert reason in str(rejected.value)


MARKED: dict[str, Any] = {"type": "json_schema", "json_schema": numbers(uniqueItems=True), "is_enforced": True}


def test_a_schema_is_enforced_whatever_its_caller_says_of_it(model: AsyncEngine) -> None:
    door: Door = (by_engine, lambda _: in_tag({"type": "sequence", "elements": [MARKED | {"max_whitespace_cnt": 1}]}))
    assert allowed(model, door, None, ["[1, 2]", "[1, 1]"]) == ["[1, 2]"]
    holder = {"schema": MARKED["json_schema"], "is_enforced": True}
    whole: Door = (by_engine, lambda _: MARKED | {"json_schema": holder})
    assert allowed(model, whole, None, ["[1, 2]", "[1, 1]"]) == ["[1, 2]"]


@pytest.mark.parametrize("door", SCHEMAS)
def test_members_come_in_any_order_and_others_come_where_the_request_says_so(model: AsyncEngine, door: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}, "required": ["a", "b"]}
    texts = ['{"a": null, "b": null}', '{"b": null, "a": null}', '{"c": null, "b": null, "a": null, "d": 1}']
    others = ['{"b": null}', '{"a": null, "a": null, "b": null}']
    respond, form = SCHEMAS[door]
    assert allowed(model, (respond, form), schema, texts + others) == texts[:1]
    if door == "lark":  # has no place to say so
        return

    def free(given: Any) -> dict[str, Any]:
        formed = form(given)
        options = {"property_order": "any", "additional": "any"}
        formed["json_schema" if "json_schema" in formed else "structural_tag"].update(options)
        return formed

    assert allowed(model, (respond, free), schema, texts + others) == texts
