"""Responses under a response format: they fit it, whatever the model would rather say."""

import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.json_schema import SchemaError, grammar_of
from lmdeploy.offline.async_engine import AsyncEngine
from openai_gateway.protocol.structured import choice_grammar
from tests.support.both_engines import BACKENDS, config_for
from tests.support.grammar_walk import Judge
from tests.support.random_schemas import RandomSchemas
from tests.support.tiny_models import WHOLE_VOCABULARY, make_tiny_llama
from tests.support.waiting import eventually_sync

# 60 functions as real tools declare them: all texts and lists have bounds.
CALL_SCHEMAS: dict[str, Any] = dict(map(json.loads, (Path(__file__).parents[1] / "json_schema/calls.jsonl").open()))


@pytest.fixture(scope="module")
def model(default_model_dir: Path) -> Iterator[AsyncEngine]:
    with pipeline(str(default_model_dir), backend_config=TurbomindEngineConfig(cache_max_entry_count=256)) as loaded:
        yield loaded


@pytest.fixture(scope="module", params=BACKENDS)
def babbler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    """A model with random weights, which keeps to no format of its own accord."""
    sizes = {"max_position_embeddings": 2048, "vocab_size": WHOLE_VOCABULARY}
    directory = make_tiny_llama(tmp_path_factory.mktemp("babbler") / "model", **sizes)
    with pipeline(str(directory), backend_config=config_for(request.param, cache_max_entry_count=1024)) as loaded:
        yield loaded


def tag_of(pattern: str) -> dict[str, Any]:
    """Return a format of an expression within a structural tag."""
    return {"type": "structural_tag", "structural_tag": {"type": "regex", "pattern": pattern}}


def as_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "test", "schema": schema}}


def config_of(response_format: dict[str, Any], max_new_tokens: int = 40, **changes: Any) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=max_new_tokens, response_format=response_format, **changes)


FORMATS = Judge.FORMAT_CHECKER
FREE: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0}  # draws from all that may come


def test_schemas_of_functions_are_kept_by_a_model_with_random_weights(babbler: AsyncEngine, *, all_cases: bool) -> None:
    schemas = list(CALL_SCHEMAS.values())[:: 1 if all_cases else 3]
    configs = [config_of(as_format(schema), 1900, random_seed=seed, **FREE) for seed, schema in enumerate(schemas)]
    prompts = ["".join(random.Random(seed).choices("abc def\n{}[]", k=20)) for seed in range(len(configs))]
    ended = 0
    for schema, response in zip(schemas, babbler(prompts, configs, do_preprocess=False), strict=True):
        if response.finish_reason == "stop":  # the others are cut off
            ended += 1
            jsonschema.validate(json.loads(response.text), schema, format_checker=FORMATS)
    assert ended >= len(schemas) * 5 // 6


def respond_with(model: AsyncEngine, seed: int) -> str:
    """Have a response to a random schema, and return what it is."""
    schema = RandomSchemas(seed).schema()
    try:
        grammar_of(schema)
    except SchemaError:
        return "refused"
    try:
        response = model("Write a short example.", config_of(as_format(schema), 256, random_seed=seed, **FREE))
    except (ValueError, RuntimeError) as error:
        if "response_format: " not in str(error):
            raise
        return "too much"
    if response.finish_reason != "stop":
        return "cut off"
    wrong = next(Judge(schema, format_checker=FORMATS).iter_errors(json.loads(response.text)), None)
    assert wrong is None, (seed, response.text, wrong.message, schema)
    return "valid"


@pytest.mark.timeout(3000)  # all cases take 14 minutes on 2 cores of a Zen 3
def test_responses_to_random_schemas_with_every_keyword_are_valid(model: AsyncEngine, *, all_cases: bool) -> None:
    count = 1000 if all_cases else 15
    with ThreadPoolExecutor(16) as threads:
        counts = Counter(threads.map(lambda seed: respond_with(model, seed), range(3 * count)))
    assert counts["valid"] >= count, counts
    assert counts["too much"] <= -(-count // 20), counts


@pytest.mark.parametrize(
    ("kind", "grammar", "message"),
    [
        ("lark", 'start: a\n\na: "é" missing', "line 3, column 8: unknown name 'missing'"),
        ("lark", 'start: "é"i /b/i missing', "line 1, column 18: unknown name 'missing'"),
        ("lark", 'start: "a" %json {"type":\n  "integer"\n} missing', "line 3, column 3: unknown name 'missing'"),
        ("lark", 'start: ("a"\n', "line 1, column 12: expected ')'"),
        ("lark", "%import common.FOO\nstart: FOO", "line 1, column 1: unknown common import 'common.FOO'"),
        ("lark", "start: a\na: start", "line 1, column 1: start: no text fits it"),
        ("lark", 'start: "\\q"', 'line 1, column 8: the escapes of a string are those of JSON, got "\\q"'),
        ("lark", 'start: "a', 'line 1, column 8: the " has no "'),
        ("lark", "start: /a", "line 1, column 8: the regular expression is not closed"),
        ("lark", "start: /a\nb/", "line 1, column 8: the regular expression is not closed on its line"),
        ("lark", "start: /é(b/", "line 1, column 10: the expression has a ( without a )"),
        ("lark", "start: /a[b/", "line 1, column 10: the expression has a [ without a ]"),
        ("lark", "start: /a^b/m", "line 1, column 9: the expression matches no text"),
        ("lark", "start: /a/g", "line 1, column 11: the flag g"),
        ("lark", "start: /(?=a)b/", "line 1, column 9: the expression looks ahead"),
        ("lark", "start: /(a)\\1/", "line 1, column 12: the expression has \\1"),
        ("lark", "start: /a*+/", "line 1, column 11: the expression repeats what is repeated already"),
        ("lark", "start: <|tool|>", "line 1, column 8: special tokens by their names"),
        ("lark", 'start[temperature=0.5]: "a"', "line 1, column 7: a temperature of a rule"),
        ("lark", 'start: %regex {"substring": "a"}', "line 1, column 8: unknown field 'substring'"),
        ("lark", 'start: "a"{4294967297}', "line 1, column 12: numbers have at most 9 digits"),
        ("grammar", 'root ::= a\na ::= "é" b', 'line 2, column 11: Rule "b" is not defined'),
        ("grammar", 'root ::= ("a"', "line 1, column 14: Expect )"),
        ("grammar", 'root ::= "\\q"', "line 1, column 11: Invalid escape"),
        ("grammar", 'root ::= "\\ud800"', "line 1, column 11: the escape names no character"),
        ("grammar", 'root ::= "a" (=[b])', "line 1, column 14: looking ahead, (="),
        ("grammar", 'root ::= Regex("(a+)+")', "line 1, column 10: Regex(...) is not supported"),
        ("grammar", 'root ::= "<" a\na ::= b "x" | "y"\nb ::= "z"? a', "line 2, column 1: a: the rule 'a' begins"),
        ("lark", 'start: "<" sum\nsum: ("-"? sum) "+" | "x"', "line 2, column 1: sum: the rule 'sum'"),
        ("grammar", '# root\nroot ::= root "a"', "line 2, column 1: root: no text fits it"),
    ],
)
def test_a_refused_grammar_names_the_line_and_column(
    babbler: AsyncEngine, kind: str, grammar: str, message: str
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=re.escape(message)):
        babbler("Hello", config_of({"type": kind, kind: grammar}))


TAGGED = {
    "type": "tag",
    "begin": "<",
    "content": {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 2}},
    "end": ">",
}


@pytest.mark.parametrize(
    ("response_format", "digit", "pattern"),
    [
        (as_format({"type": "integer"}), "7", "7{19}"),
        (as_format({"type": "integer", "minimum": 1}), "7", "7{19}"),
        (as_format({"type": "integer", "multipleOf": 1000}), "3", "3{16}000"),
        (as_format({"type": "integer", "minimum": 10**14, "maximum": 10**15 - 1}), "7", "7{15}"),
        (as_format({"type": "number"}), "7", r"7{17}e77"),
        (as_format({"type": "number", "minimum": 0.5}), "7", r"7{9}(\.7{6})?"),
        (
            as_format({"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2}),
            "7",
            r"\[7{19}, 7{19}\]",
        ),
        ({"type": "structural_tag", "structural_tag": TAGGED}, "7", "<7{19}>"),
        # The user's own languages are left alone.
        (as_format({"type": "string", "pattern": "^[0-9]+$"}), "7", '"7{59,}'),
        ({"type": "regex_schema", "regex_schema": "[0-9]+"}, "7", "7{60}"),
    ],
)
def test_a_model_that_writes_digits_only_comes_to_the_end_of_a_number(
    babbler: AsyncEngine, response_format: dict[str, Any], digit: str, pattern: str
) -> None:
    (token,) = babbler.tokenizer.encode(digit, add_bos=False)
    response = babbler("x", config_of(response_format, 60, logit_bias={token: 100.0}), do_preprocess=False)
    assert re.fullmatch(pattern, response.text), response.text


def test_one_of_some_texts_comes_whatever_is_in_them(babbler: AsyncEngine) -> None:
    choices = ['say "yes"', "back\\slash", "two\nlines", "über 🦜", "\x01", "{4294967297}"]
    for forced in ([choice] for choice in choices):
        config = config_of({"type": "grammar", "grammar": choice_grammar(forced)})
        assert [babbler("Well?", config).text] == forced
    config = config_of({"type": "grammar", "grammar": choice_grammar(choices)}, do_sample=True, temperature=1.0)
    assert {response.text for response in babbler(["Well?"] * 12, config)} <= set(choices)


def test_what_comes_to_no_end_is_not_begun(babbler: AsyncEngine) -> None:
    (token,) = babbler.tokenizer.encode("a", add_bos=False)
    grammar = 'root ::= "a" b | "c"\nb ::= "a" b'
    config = config_of({"type": "grammar", "grammar": grammar}, logit_bias={token: 100.0})
    assert babbler("Go", config, do_preprocess=False).text == "c"


def test_a_response_without_stop_tokens_ends_where_its_format_ends(babbler: AsyncEngine) -> None:
    config = config_of({"type": "regex_schema", "regex_schema": "[0-9]{4}"}, ignore_eos=True)
    response = babbler("A year", config, do_preprocess=False)
    assert re.fullmatch("[0-9]{4}", response.text)
    assert response.finish_reason == "stop"


def test_forced_text_costs_no_steps_and_streams_like_any_other(babbler: AsyncEngine) -> None:
    text = 'The quick brown fox\'s "user_name": 2024, jumps over the lazy naïve 犬.\n' * 4
    config = config_of({"type": "grammar", "grammar": f"root ::= {json.dumps(text)} [0-9]"}, 400)
    before = babbler.engine.metrics()["steps_total"]
    whole = babbler("Say it", config)
    assert babbler.engine.metrics()["steps_total"] - before <= 4
    assert whole.text.startswith(text)
    assert whole.text[len(text) :].isdigit()
    # The tokens are those of the tokenizer, and the same where each takes a step.
    own = babbler.tokenizer.encode(text, add_bos=False)
    assert whole.token_ids[: len(own) - 1] == own[:-1]
    assert babbler("Say it", dataclasses.replace(config, logprobs=1)).token_ids == whole.token_ids
    assert "".join(piece.text for piece in babbler.stream_infer("Say it", config)) == whole.text


def test_forced_text_has_the_added_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", vocab_size=WHOLE_VOCABULARY + 8)
    content = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    added = {**content["added_tokens"][0], "special": False}
    content["added_tokens"].append(added | {"id": WHOLE_VOCABULARY, "content": "<tool_call>"})
    (model / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    config = config_of({"type": "grammar", "grammar": 'root ::= "call<tool_call>{\\"name\\": " [0-9]'}, 40)
    with pipeline(str(model), backend_config=TurbomindEngineConfig(cache_max_entry_count=64)) as pipe:
        own = pipe.tokenizer.encode('call<tool_call>{"name":', add_bos=False)
        assert WHOLE_VOCABULARY in own
        assert pipe("Say it", config).token_ids[: len(own)] == own


def test_forced_text_is_written_around_a_forbidden_token(babbler: AsyncEngine) -> None:
    config = config_of({"type": "grammar", "grammar": 'root ::= "The quick brown fox." [0-9]'}, 40)
    usual = babbler("Say it", config)
    (token,) = babbler.tokenizer.encode(" quick", add_bos=False)
    assert token in usual.token_ids
    for forbidding in ({"bad_token_ids": [token]}, {"stop_token_ids": [token]}):  # none may end an unfinished response
        other = babbler("Say it", dataclasses.replace(config, **forbidding))
        assert token not in other.token_ids
        assert other.text.startswith("The quick brown fox.")


@pytest.mark.parametrize(
    ("response_format", "message"),
    [
        (as_format({"type": "nonsense"}), "nonsense"),
        (tag_of("(" * 5000 + "a" + ")" * 5000), "nested deeper than 40 groups"),
        ({"type": "grammar", "grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "Nest layer"),
        (tag_of("a" * 100_000), "bytes long"),
        (
            {"type": "grammar", "grammar": 'root ::= "#\\"[" "a" {4294967297}'},
            "column 22: numbers have at most 9 digits",
        ),
        ({"type": "structural_tag", "structural_tag": {"type": "poem"}}, "poem"),
        ({"type": "structural_tag", "structural_tag": {"type": "token", "token": "a"}}, "named by its number"),
        ({"type": "structural_tag", "structural_tag": {"type": "token_triggered_tags"}}, "token_triggered_tags"),
        ({"type": "structural_tag", "structural_tag": {"type": "any_text", "max_chars": 9}}, "max_chars"),
        ({"type": "poem"}, "json_object, json_schema, regex_schema, grammar, lark or structural_tag"),
    ],
)
def test_a_format_that_cannot_be_compiled_fails_its_request_alone(
    babbler: AsyncEngine, response_format: dict[str, Any], message: str
) -> None:
    good = GenerationConfig(max_new_tokens=8)
    expected = babbler("Hello", good).text
    with pytest.raises((ValueError, RuntimeError), match=re.escape(message)):
        babbler("Hello", config_of(response_format))
    assert babbler("Hello", good).text == expected
    eventually_sync(lambda: babbler.engine.metrics()["cache_blocks_used"] == 0)


def test_a_special_token_comes_in_a_structural_tag_that_names_its_text_and_in_no_other(model: AsyncEngine) -> None:
    content = "<file_sep>"
    (token,) = model.tokenizer.encode(content, add_bos=False)
    assert model.tokenizer.decode([token]) == ""  # it is special

    def respond(begin: str, **fields: Any) -> Any:
        tag = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": "</end>"}
        tagged = {"type": "structural_tag", "structural_tag": tag}
        return model("Go on", config_of(tagged, 12, skip_special_tokens=False, **fields))

    assert token in respond(f"call{content}").token_ids  # as the tokenizer writes that text
    named = respond(f"call{content}", logit_bias={token: 100.0})
    assert (named.token_ids.count(token) > 0, named.text.startswith(f"call{content}")) == (True, True)
    assert token not in respond("call", logit_bias={token: 100.0}).token_ids
