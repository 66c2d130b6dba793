"""A response format means the same through every door: to the engine as Triton passes it, to `pipeline`, in a tag."""

import json
import queue
import re
from collections.abc import Iterator
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


DOORS = ("engine", "pipeline", "tag", "lark")


def form_of(door: str, given: str | dict[str, Any]) -> dict[str, Any]:
    """Return the format of an expression or a schema."""
    name = "regex" if isinstance(given, str) else "json_schema"
    match door, given:
        case "lark", str():
            return {"type": "lark", "lark": "start: /" + given.replace("/", r"\/") + "/"}
        case "lark", _:
            return {"type": "lark", "lark": f"start: %json {json.dumps(given)}"}
        case "tag", _:
            return in_tag({"type": name, "pattern" if name == "regex" else name: given})
        case _, str():
            return {"type": "regex_schema", "regex_schema": given}
    return {"type": "json_schema", "json_schema": {"schema": given}}


def allowed(model: AsyncEngine, door: str, form: dict[str, Any], texts: list[str]) -> list[str]:
    """Return those of some texts that a format lets through; a refusal is a `ValueError`."""
    respond = by_pipeline if door == "pipeline" else by_engine
    found = []
    for text in texts:
        config = GenerationConfig(max_new_tokens=40, response_format=form, logits_processors=[Dictation(model, text)])
        found += [text] if respond(model, config) == text else []
    return found


def numbers(**bounds: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"enum": [1, 2]}} | bounds


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("given", "accepted", "others"),
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
def test_a_format_allows_the_same_texts(
    model: AsyncEngine, door: str, given: str | dict[str, Any], accepted: list[str], others: list[str]
) -> None:
    assert allowed(model, door, form_of(door, given), accepted + others) == accepted


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("given", "reason"),
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
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems: is enforced where"),
        ({"properties": {"a~/b": {"type": "what"}}}, "#/properties/a~0~1b/type: "),
        ({"type": "string", "pattern": "(?=x)"}, "#/pattern: the expression '(?=x)' looks ahead"),
        ({"$ref": "https://example.com/x.json"}, "#/$ref: "),
        (numbers(uniqueItems=True, minItems=3), "no value meets this schema"),
    ],
)
def test_a_format_is_refused_for_the_same_reason(
    model: AsyncEngine, door: str, given: str | dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=r"response_format.*") as rejected:
        allowed(model, door, form_of(door, given), ["1"])
    assert reason in str(rejected.value)


def test_an_object_is_any_object(model: AsyncEngine) -> None:
    texts = ["{}", '{"a": [1, {"b": null}], "é": "c"}', "[1]", '"a"', "{,}", '{"a": 1']
    assert allowed(model, "engine", {"type": "json_object"}, texts) == texts[:2]


MARKED: dict[str, Any] = {"type": "json_schema", "json_schema": numbers(uniqueItems=True), "is_enforced": True}


@pytest.mark.parametrize(
    "form",
    [
        in_tag({"type": "sequence", "elements": [MARKED | {"max_whitespace_cnt": 1}]}),
        MARKED | {"json_schema": {"schema": MARKED["json_schema"], "is_enforced": True}},
    ],
)
def test_a_schema_is_enforced_whatever_its_caller_says_of_it(model: AsyncEngine, form: dict[str, Any]) -> None:
    assert allowed(model, "engine", form, ["[1, 2]", "[1, 1]"]) == ["[1, 2]"]


@pytest.mark.parametrize("door", DOORS)
def test_members_come_in_any_order_and_others_come_where_the_request_says_so(model: AsyncEngine, door: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}, "required": ["a", "b"]}
    texts = ['{"a": null, "b": null}', '{"b": null, "a": null}', '{"c": null, "b": null, "a": null, "d": 1}']
    others = ['{"b": null}', '{"a": null, "a": null, "b": null}']
    form = form_of(door, schema)
    assert allowed(model, door, form, texts + others) == texts[:1]
    if door != "lark":  # it has no place to say so
        form["structural_tag" if door == "tag" else "json_schema"].update(property_order="any", additional="any")
        assert allowed(model, door, form, texts + others) == texts


WORDS = "Hello, big  world_1!"
WORD_CHUNKS = re.findall(r"\w+|\W", WORDS)
ENDS = range(len(WORD_CHUNKS) + 1)
SPANS = "|".join(re.escape("".join(WORD_CHUNKS[start:end])) for start in ENDS for end in ENDS)


@pytest.mark.parametrize(
    ("lark", "judge", "texts"),
    [
        ("/hel+o[^k]/i", "(?i)hel+o[^k]", ["HeLLo!", "helok", "heloK", "hello\u212a", "heo!"]),
        ('"grüße"i', "(?i)grüße", ["GRÜßE", "grüße", "grüsse"]),
        ("/a.b/s", "(?s)a.b", ["a\nb", "axb", "ab"]),
        ("/a b # c\n  [ d]/x", "ab[ d]", ["abd", "ab ", "a bd"]),
        ("/^a.b$/mis", "(?s)[aA].[bB]", ["A\nb", "a b", "A"]),
        (f'%regex {{"substring_words": "{WORDS}"}}', SPANS, ["big  world_1", "big  wor", " "]),
        ('%regex {"substring_chars": "añb"}', "|a(ñb?)?|ñb?|b", ["ñb", "ab", "", "añb"]),
    ],
)
def test_expressions_of_lark_are_read_as_re_reads_them(
    model: AsyncEngine, lark: str, judge: str, texts: list[str]
) -> None:
    form = {"type": "lark", "lark": f'start: "<" EXPRESSION ">"\nEXPRESSION: {lark}'}
    found = allowed(model, "lark", form, [f"<{text}>" for text in texts])
    assert found == [f"<{text}>" for text in texts if re.fullmatch(judge, text)]
