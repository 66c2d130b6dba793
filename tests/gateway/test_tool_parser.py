"""Golden answers of the three families, whole and cut anywhere."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_gateway.protocol.tools import Tool
from openai_gateway.tools.events import ArgumentsFound, CallBegun, CallBroken, TextFound
from openai_gateway.tools.forced import call_format
from openai_gateway.tools.parser import ToolCallParser, parse

NAMES = frozenset({"add", "get_weather", "get_date", "wolfram_alpha", "code_interpreter"})
PIECES = ["<tool_call>", "</tool_call>", '{"name": "add", "arguments": {', '"a": 1', "}}", "{", "}", '"', "\\", " "]
PIECES += ["<|python_tag|>", "<|action_start|><|plugin|>", "<function=add>", "</function>", "x", ";"]
Calls = list[tuple[str, Any]]

WEATHER = {"location": 'Zürich, "old" {town}', "unit": "celsius", "days": [1, {"a": "]}"}], "path": "C:\\"}
WEATHER_JSON = json.dumps(WEATHER, ensure_ascii=False)

# answer, text, calls
GOLDEN: dict[str, tuple[str, str, Calls]] = {
    "qwen": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {WEATHER_JSON}}}\n</tool_call>',
        "",
        [("get_weather", WEATHER)],
    ),
    "qwen several": (
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"location": "旧金山"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_date", "arguments": {}}\n</tool_call>',
        "Let me look.",
        [("get_weather", {"location": "旧金山"}), ("get_date", {})],
    ),
    "qwen, stopped before its last mark": (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n',
        "",
        [("add", {"a": 1, "b": 2})],
    ),
    "qwen, arguments first": (
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        "",
        [("add", {"a": 1})],
    ),
    "internlm2": (
        'I will add.<|action_start|><|plugin|>\n{"name": "add", "parameters": {"a": 3, "b": 5}}<|action_end|>\n',
        "I will add.",
        [("add", {"a": 3, "b": 5})],
    ),
    "internlm2, its end being a stop word": (
        f'<|action_start|><|plugin|>\n{{"name": "get_weather", "parameters": {WEATHER_JSON}}}',
        "",
        [("get_weather", WEATHER)],
    ),
    "llama json": ('{"name": "add", "parameters": {"a": 3, "b": 5}}', "", [("add", {"a": 3, "b": 5})]),
    "llama json with a type": (
        ' {"type": "function", "name": "add", "parameters": {"a": 3}}',
        "",
        [("add", {"a": 3})],
    ),
    "llama json, several": (
        '{"name": "add", "parameters": {"a": 3}}; {"name": "get_date", "parameters": {}}',
        "",
        [("add", {"a": 3}), ("get_date", {})],
    ),
    "llama python tag": (
        f'<|python_tag|>{{"name": "get_weather", "parameters": {WEATHER_JSON}}}',
        "",
        [("get_weather", WEATHER)],
    ),
    "llama built-in": (
        '<|python_tag|>wolfram_alpha.call(query="solve x^3 - 4x^2 + 6x - 24 = 0")',
        "",
        [("wolfram_alpha", {"query": "solve x^3 - 4x^2 + 6x - 24 = 0"})],
    ),
    "llama code": ("<|python_tag|>print(1 + 1)\n", "", [("code_interpreter", {"code": "print(1 + 1)"})]),
    "llama function": (
        f"<function=get_weather>{WEATHER_JSON}</function>",
        "",
        [("get_weather", WEATHER)],
    ),
    "no call": ("The sum of 3 and 5 is 8; a < b, {x}, <tool", "The sum of 3 and 5 is 8; a < b, {x}, <tool", []),
    "json that is no call": ('{"answer": 8, "name": "x"}', '{"answer": 8, "name": "x"}', []),
    "json of an unknown function": (
        '{"name": "fly", "arguments": {"to": "moon"}}',
        '{"name": "fly", "arguments": {"to": "moon"}}',
        [],
    ),
    "malformed, then proper": (
        '<tool_call>\nadd 3 and 5\n</tool_call><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        "<tool_call>\nadd 3 and 5\n</tool_call>",
        [("add", {"a": 1})],
    ),
}
MALFORMED = [
    '<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>',
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}',
    '<tool_call>\n{"name": "add", "arguments": [1]}\n</tool_call>',
    '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}} junk\n</tool_call>',
    '<|action_start|><|plugin|>\n{"name": "add", "parameters": "a"}<|action_end|>',
    "<|action_start|><|interpreter|>\nprint(1)<|action_end|>",
    '{"name": "add", "parameters": {"a": 3}',
    "<function=add>{</function>",
    "<function=a b>{}</function>",
    "<function=",
]


def streamed(pieces: list[str], names: frozenset[str] = NAMES) -> tuple[str, list[tuple[str, str]]]:
    """Return text and calls as a client adds them up from a stream."""
    parser = ToolCallParser(names)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    text, calls = "", {}
    for event in events:
        match event:
            case TextFound():
                text += event.text
            case CallBegun():
                calls[event.index] = (event.name, "")
            case ArgumentsFound():
                name, arguments = calls[event.index]
                calls[event.index] = (name, arguments + event.text)
            case CallBroken():
                del calls[event.index]
                text += event.text
    return text, list(calls.values())


def decoded(calls: list[tuple[str, str]]) -> Calls:
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_golden_answer_gives_its_calls(kind: str) -> None:
    answer, text, calls = GOLDEN[kind]
    found = parse(answer, NAMES)
    assert found.text == text
    assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_golden_answer_cut_at_any_byte_gives_the_same_calls(kind: str) -> None:
    answer, text, calls = GOLDEN[kind]
    raw = answer.encode()
    for cut in range(len(raw) + 1):  # the engine sends whole characters: half of one waits for its rest
        first = raw[:cut].decode(errors="ignore")
        got_text, got_calls = streamed([first, answer[len(first) :]])
        assert (got_text, decoded(got_calls)) == (text, calls), f"cut at byte {cut}"
    got_text, got_calls = streamed(list(answer))
    assert (got_text, decoded(got_calls)) == (text, calls)


def test_arguments_arrive_before_the_call_is_complete() -> None:
    parser = ToolCallParser(NAMES)
    events = parser.feed('<tool_call>\n{"name": "add", "arguments": {"a": 1')
    assert events == [CallBegun(0, "add"), ArgumentsFound(0, '{"a": 1')]
    assert parser.feed(', "b"') == [ArgumentsFound(0, ', "b"')]


def test_text_is_not_held_back_without_reason() -> None:
    parser = ToolCallParser(NAMES)
    assert parser.feed("Well, ") == [TextFound("Well,")]
    assert parser.feed("3 < 5 <t") == [TextFound(" 3 < 5")]
    assert parser.feed("able>") == [TextFound(" <table>")]
    assert ToolCallParser(NAMES).feed('{"answer"') == [TextFound("{"), TextFound('"answer"')]


@pytest.mark.parametrize("answer", MALFORMED)
def test_a_malformed_call_comes_back_as_text(answer: str) -> None:
    found = parse(answer, NAMES)
    assert found.calls == []
    assert found.text == answer
    for cut in range(len(answer) + 1):
        assert streamed([answer[:cut], answer[cut:]]) == (answer, [])


@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=12,
    ),
    st.data(),
)
@settings(max_examples=1500, deadline=None)
def test_no_text_breaks_the_parser_and_cuts_do_not_matter(parts: list[str], data: st.DataObject) -> None:
    answer = "".join(parts)
    found = parse(answer, NAMES)
    whole = (found.text, [(call.name, call.arguments) for call in found.calls])
    cut = data.draw(st.integers(0, len(answer)))
    assert streamed([answer[:cut], answer[cut:]]) == whole
    assert streamed(list(answer)) == whole


def test_a_long_answer_full_of_marks_is_parsed_in_reasonable_time() -> None:
    assert parse("<tool_call>" * 5000, NAMES).text == "<tool_call>" * 5000


def test_a_forced_call_is_constrained_by_the_tools_schemas() -> None:
    point = {"type": "object", "properties": {"x": {"type": "int"}}, "required": ["x"]}
    parameters = {"type": "object", "properties": {"p": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": point}}
    tools = [
        Tool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}}) for name in "ab"
    ]
    schema = call_format(tools)["json_schema"]["schema"]
    assert [call["properties"]["name"]["const"] for call in schema["anyOf"]] == ["a", "b"]
    assert schema["anyOf"][1]["properties"]["arguments"]["properties"]["p"] == {"$ref": "#/$defs/tool1.Point"}
    assert schema["$defs"]["tool1.Point"]["properties"]["x"] == {"type": "integer"}
    (single,) = [call_format(tools[:1])["json_schema"]["schema"]]
    assert single["properties"]["name"] == {"const": "a"}
