"""Golden responses of the families, whole and cut anywhere."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from lmdeploy.templates.thinking import HARMONY, THINK, Thinking
from lmdeploy.templates.tool_call_formats import GENERIC, TOOL_CALL_FORMATS
from openai_gateway.errors import ApiError
from openai_gateway.generation.conversation import tool_inputs
from openai_gateway.protocol.tools import Tool
from openai_gateway.tools.events import ArgumentsFound, CallBegun, CallBroken, CallEnded, TextFound
from openai_gateway.tools.json_prefix import MAX_DEPTH, JsonObjectReader
from openai_gateway.tools.parser import ToolCallParser
from tests.support.tool_calls import parse, streamed

NAMES = frozenset({"add", "get_weather", "get_date", "wolfram_alpha", "code_interpreter"})
PIECES = ["<tool_call>", "</tool_call>", '{"name": "add", "arguments": {', '"a": 1', "}}", "{", "}", '"', "\\", " "]
PIECES += ["[TOOL_CALLS]", "[", "]", ",", "<|assistant|>", "add\n"]
PIECES += ["[add(", "a=1", "'", ")", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "add<｜tool▁sep｜>"]
PIECES += ["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", " to=functions.add", "<|message|>", "<|call|>", "functools"]
PIECES += ["<|tool_call|>", "<|/tool_call|>"]
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
    "qwen, arguments first": ('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [("add", {"a": 1})]),
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
    "llama json with a type": (' {"type": "function", "name": "add", "parameters": {"a": 3}}', "", [("add", {"a": 3})]),
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
    "llama function": (f"<function=get_weather>{WEATHER_JSON}</function>", "", [("get_weather", WEATHER)]),
    "mistral": (
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {WEATHER_JSON}}}]',
        "",
        [("get_weather", WEATHER)],
    ),
    "mistral several": (
        'I look.[TOOL_CALLS][{"name": "add", "arguments": {"a": [1]}, "id": "123456789"}, '
        '{"name": "get_date", "arguments": {}},\n{"arguments": {"b": 2}, "name": "add"}] Done.',
        "I look. Done.",
        [("add", {"a": [1]}), ("get_date", {}), ("add", {"b": 2})],
    ),
    "mistral, stopped before the list's end": (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "get_date", "arguments": {}}',
        "",
        [("add", {"a": 1}), ("get_date", {})],
    ),
    "mistral, the second malformed": (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"fly": 1}]',
        ', {"fly": 1}]',
        [("add", {"a": 1})],
    ),
    "glm4": (f"get_weather\n{WEATHER_JSON}", "", [("get_weather", WEATHER)]),
    "glm4, after a line end": ('\nadd\n{"a": 1}\n', "", [("add", {"a": 1})]),
    "glm4, said and several": (
        '\nI look.<|assistant|>get_weather\n{"location": "旧金山"}<|assistant|>get_date\n{}',
        "\nI look.",
        [("get_weather", {"location": "旧金山"}), ("get_date", {})],
    ),
    "glm4, no call": ("get_weather\nis a function.", "get_weather\nis a function.", []),
    "glm4, the beginning of a name": ("additional", "additional", []),
    "glm4, a function that is unknown": ('fly\n{"to": "moon"}', 'fly\n{"to": "moon"}', []),
    "hermes": (
        f'<tool_call>\n{{"arguments": {WEATHER_JSON}, "name": "get_weather"}}\n</tool_call>',
        "",
        [("get_weather", WEATHER)],
    ),
    "llama pythonic": (
        '[get_weather(location="Zürich, \\"old\\" {town})]", days=[1, {\'a\': -2.5}], now=True, x=None), get_date()]',
        "",
        [
            ("get_weather", {"location": 'Zürich, "old" {town})]', "days": [1, {"a": -2.5}], "now": True, "x": None}),
            ("get_date", {}),
        ],
    ),
    "llama 4": ("<|python_start|>[add(a=1, b=(2))]<|python_end|>", "", [("add", {"a": 1, "b": 2})]),
    "pythonic, stopped before the list's end": ("[add(a=1)", "", [("add", {"a": 1})]),
    "a list that is no call": ('["add", 1, get_weather]', '["add", 1, get_weather]', []),
    "a list of an unknown function": ("[fly(to='moon')]", "[fly(to='moon')]", []),
    "deepseek v3": (
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{WEATHER_JSON}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_date\n```json\n"
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "I look.",
        [("get_weather", WEATHER), ("get_date", {})],
    ),
    "deepseek v3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{WEATHER_JSON}<｜tool▁call▁end｜>"
        '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [("get_weather", WEATHER), ("add", {"a": 1})],
    ),
    "deepseek v3, stopped before its last marks": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```',
        "",
        [("add", {"a": 1})],
    ),
    "gpt-oss, the channel first": (
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{WEATHER_JSON}<|call|>",
        "",
        [("get_weather", WEATHER)],
    ),
    "gpt-oss, the recipient first": (
        ' to=functions.add<|channel|>commentary <|constrain|>json<|message|>{"a": 1}',
        "",
        [("add", {"a": 1})],
    ),
    "gpt-oss, behind its reasoning": (
        '<|start|>assistant<|channel|>commentary to=functions.add json<|message|>{"a": {"b": 1}}',
        "",
        [("add", {"a": {"b": 1}})],
    ),
    "granite": (
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {WEATHER_JSON}}}, '
        '{"name": "get_date", "arguments": {}}]',
        "",
        [("get_weather", WEATHER), ("get_date", {})],
    ),
    "phi-4": (
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {WEATHER_JSON}}}]<|/tool_call|>',
        "",
        [("get_weather", WEATHER)],
    ),
    "phi-4 mini": ('functools[{"name": "add", "arguments": {"a": 1}}]', "", [("add", {"a": 1})]),
    "command-r": (
        'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
        f'{WEATHER_JSON}\n    }},\n    {{\n        "tool_name": "get_date",\n        "parameters": {{}}\n    }}\n]```',
        "",
        [("get_weather", WEATHER), ("get_date", {})],
    ),
    "command-r7b": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        f'{WEATHER_JSON}}},\n    {{"tool_call_id": "1", "tool_name": "get_date", "parameters": {{}}}}\n]<|END_ACTION|>',
        "",
        [("get_weather", WEATHER), ("get_date", {})],
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
BAD_ARGUMENTS = [
    '{"a": }',
    '{"a": 1,}',
    '{"a": 01}',
    '{"a": NaN}',
    '{"a": 1e+}',
    '{"a": -}',
    '{"a": tru}',
    '{"a": "\\x"}',
    '{"a": "\\u12g4"}',
    '{"a": "two\nlines"}',
    '{"a" 1}',
    '{"a": 1 "b": 2}',
    '{"a": [1, 2}}',
    '{"a": {"b": 1]}',
    '{"a": [}]}',
    "{'a': 1}",
    '{"a": {"b": {"c": 1}}, 2}',
]
MALFORMED = [
    *(f'<tool_call>\n{{"name": "add", "arguments": {bad}}}\n</tool_call>' for bad in BAD_ARGUMENTS),
    *(f'<|action_start|><|plugin|>\n{{"name": "add", "parameters": {bad}}}<|action_end|>' for bad in BAD_ARGUMENTS[:9]),
    *(f'{{"name": "add", "parameters": {bad}}}' for bad in BAD_ARGUMENTS[:9]),
    *(f"<function=add>{bad}</function>" for bad in BAD_ARGUMENTS),
    '<tool_call>\n{"name": "add", "arguments": {"a": {"b": 1}}, junk}\n</tool_call>',
    '<tool_call>\n{"name": "add", "arguments": {"a": {"b": 1}}]\n</tool_call>',
    '<tool_call>\n{"arguments": {"ü": 1}, "name": "add"} junk',
    '<tool_call>\n{"name": "\\ud800", "arguments": {"a": 1}}\n</tool_call>',
    '<function=add>{"a": {}} junk</function>',
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
    *(f'[TOOL_CALLS] [{{"name": "add", "arguments": {bad}}}]' for bad in BAD_ARGUMENTS[:9]),
    '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}} junk]',
    '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}',
    "[TOOL_CALLS] []",
    '[TOOL_CALLS] add({"a": 1})',
    "[TOOL_CALLS]",
    *(f"add\n{bad}" for bad in BAD_ARGUMENTS[:9]),
    '<|assistant|>add\n{"a": 1',
    "<|assistant|>add\n",
    "<|assistant|>\nHello",
    "get_wea",
    "<function=a b>{}</function>",
    "I use functools.wraps and functools [1].",
    *(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{bad}\n```<｜tool▁call▁end｜>"
        for bad in BAD_ARGUMENTS[:9]
    ),
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add a and b {",
    f"<｜tool▁call▁begin｜>{'x' * 300}",
    *(f"to=functions.add<|message|>{bad}<|call|>" for bad in BAD_ARGUMENTS[:9]),
    "<|channel|>commentary to=functions.add now<|message|>{}<|call|>",
    '<|tool_call|>[{"name": "add", "arguments": {"a": 1}} junk]<|/tool_call|>',
    "Action: ```json\n[]```",
    "[add(1, 2)]",
    "[add(a=1, **b)]",
    "[add(a=f())]",
    "[add(a=1]",
    "[add(a='1",
    "[add(a=1) junk]",
    "<function=",
]


def streamed_here(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    return streamed(pieces, ToolCallParser(NAMES))


def decoded(calls: list[tuple[str, str]]) -> Calls:
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_golden_response_gives_its_calls_whole_and_cut_at_any_byte(kind: str) -> None:
    response, text, calls = GOLDEN[kind]
    found = parse(response, NAMES)
    assert (found.text, decoded([(call.name, call.arguments) for call in found.calls])) == (text, calls)
    raw = response.encode()
    for cut in range(len(raw) + 1):  # the engine sends whole characters: half of one waits for its rest
        first = raw[:cut].decode(errors="ignore")
        got_text, got_calls = streamed_here([first, response[len(first) :]])
        assert (got_text, decoded(got_calls)) == (text, calls), f"cut at byte {cut}"
    got_text, got_calls = streamed_here(list(response))
    assert (got_text, decoded(got_calls)) == (text, calls)


def test_a_format_that_is_named_is_the_only_one_that_is_read() -> None:
    calls = {"qwen": GOLDEN["qwen"][0], "mistral": GOLDEN["mistral"][0], "llama3": GOLDEN["llama json"][0]}
    for parser in calls:
        for written, response in calls.items():
            found = parse(response, NAMES, parser)
            assert (len(found.calls), found.text) == ((1, "") if written == parser else (0, response))
    assert parse(calls["qwen"], NAMES, "none").text == calls["qwen"]


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


def test_a_call_of_a_function_that_wants_it_is_reported_at_once_and_only_if_it_is_proper() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": {"b": 1}}}</tool_call>'
    parser = ToolCallParser(NAMES, frozenset({"add"}))
    assert [event for char in call[:-1] for event in parser.feed(char)] == []
    assert parser.feed(call[-1]) == [CallBegun(0, "add"), ArgumentsFound(0, '{"a": {"b": 1}}'), CallEnded(0)]
    broken = call.replace("}}}", "}}!")
    parser = ToolCallParser(NAMES, frozenset({"add"}))
    events = [event for char in broken for event in parser.feed(char)] + parser.finish()
    assert all(isinstance(event, TextFound) for event in events)
    assert "".join(event.text for event in events) == broken


@pytest.mark.parametrize("response", MALFORMED)
def test_a_malformed_call_comes_back_as_text(response: str) -> None:
    found = parse(response, NAMES)
    assert found.calls == []
    assert found.text == response
    for cut in range(len(response) + 1):
        assert streamed_here([response[:cut], response[cut:]]) == (response, [])


def assert_arguments_are_whole_only_if_the_call_is(pieces: list[str], names: frozenset[str] = NAMES) -> None:
    """A client sees the beginning of a JSON object at any moment, and a whole one only of a whole call."""
    parser = ToolCallParser(names)
    arguments: dict[int, str] = {}
    broken: set[int] = set()
    for events in [*map(parser.feed, pieces), parser.finish()]:
        for event in events:
            match event:
                case CallBegun():
                    arguments[event.index] = ""
                case ArgumentsFound():
                    arguments[event.index] += event.text
                    from_json(arguments[event.index], allow_partial=True)  # another reader accepts it as far as it goes
                case CallBroken():
                    broken.add(event.index)
    assert broken <= set(arguments)
    for index, text in arguments.items():
        assert is_json(text) == (index not in broken)


def is_json(text: str) -> bool:
    def reject(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=reject)
    except ValueError:
        return False
    return True


@pytest.mark.alike(max_cases=60)
@pytest.mark.parametrize("response", [*MALFORMED, *(golden[0] for golden in GOLDEN.values())])
def test_a_broken_call_cut_at_any_byte_never_looks_like_a_proper_one(response: str) -> None:
    raw = response.encode()
    for cut in range(len(raw) + 1):
        first = raw[:cut].decode(errors="ignore")
        assert_arguments_are_whole_only_if_the_call_is([first, response[len(first) :]])
        assert_arguments_are_whole_only_if_the_call_is(list(first))  # the response ends here
    assert_arguments_are_whole_only_if_the_call_is(list(response))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def test_arguments_nested_too_deeply_to_be_decoded_are_text() -> None:
    for depth, is_call in ((MAX_DEPTH - 2, True), (MAX_DEPTH - 1, False), (100_000, False)):
        response = f'<tool_call>{{"name": "add", "arguments": {{"a": {"[" * depth}{"]" * depth}}}}}</tool_call>'
        found = parse(response, NAMES)
        assert (len(found.calls) == 1, found.text) == (is_call, "" if is_call else response)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.booleans(), st.sampled_from([None, 0, 3]))
@settings(max_examples=150)
def test_the_reader_takes_every_beginning_of_an_object_and_knows_its_end(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    reader = JsonObjectReader()
    for cut in range(len(text)):
        reader.read(text[:cut])
        assert (reader.position, reader.is_complete, reader.is_broken) == (cut, False, False)
    reader.read(text + " more")
    assert (reader.position, reader.is_complete) == (len(text), True)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.data())
@settings(max_examples=300)
def test_the_reader_agrees_with_json_about_damaged_objects(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text) - 1))
    put = data.draw(st.sampled_from(["", *'{}[]",:\\0159-+.eEtrufalsn \n\x01ü']))
    damaged = text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]
    reader = JsonObjectReader()
    reader.read(damaged)
    is_whole = reader.is_complete and not damaged[reader.position :].strip(" \t\r\n")
    assert is_whole == (is_json(damaged) and damaged.lstrip().startswith("{"))


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.data())
@settings(max_examples=300)
def test_no_text_breaks_the_parser_and_cuts_do_not_matter(parts: list[str], data: st.DataObject) -> None:
    response = "".join(parts)
    found = parse(response, NAMES)
    whole = (found.text, [(call.name, call.arguments) for call in found.calls])
    cut = data.draw(st.integers(0, len(response)))
    assert streamed_here([response[:cut], response[cut:]]) == whole
    assert streamed_here(list(response)) == whole
    assert_arguments_are_whole_only_if_the_call_is([response[:cut], response[cut:]])
    assert_arguments_are_whole_only_if_the_call_is(list(response))


@pytest.mark.parametrize(
    "code",
    ["add.call(a={1, 2})", "add.call(a=1e999)", "add.call(a=b'1')", "add.call(a='\\ud800')", "add.call(**{'a': 1})"],
)
def test_python_that_json_cannot_say_is_code_for_the_interpreter_or_text(code: str) -> None:
    response = f"<|python_tag|>{code}"
    (call,) = parse(response, NAMES).calls
    json.loads(call.arguments).values()
    call.arguments.encode()
    assert (call.name == "add") == ("ud800" in code)
    if call.name != "add":
        assert json.loads(call.arguments) == {"code": code}
        assert parse(response, frozenset({"add"})).text == response


def test_a_long_response_full_of_marks_is_parsed_in_reasonable_time() -> None:
    assert parse("<tool_call>" * 5000, NAMES).text == "<tool_call>" * 5000


def tools_of(functions: list[dict[str, Any]]) -> list[Tool]:
    return [Tool.model_validate({"type": "function", "function": function}) for function in functions]


GIVEN = {"skip_special_tokens": None, "response_format": None}


def test_calls_of_strict_tools_are_held_to_their_schemas_after_their_marks() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tools = tools_of([{"name": "a", "parameters": parameters, "strict": True}, {"name": "b", "parameters": parameters}])
    strict, loose = tool_inputs(tools, [], GIVEN, GENERIC)["response_format"]["structural_tag"]["tags"]
    assert strict["content"]["json_schema"] == parameters | {"type": "object"}
    assert loose["content"]["json_schema"] == {"type": "object"}
    (call,) = parse(f'{strict["begin"]}{{"x": 1}}{strict["end"]}', NAMES | {"a"}).calls
    assert (call.name, call.arguments) == ("a", '{"x": 1}')
    assert "response_format" not in tool_inputs(tools[1:], [], GIVEN, GENERIC)  # none is strict
    assert "response_format" not in tool_inputs(tools, [], GIVEN)


def test_a_response_format_holds_text_and_leaves_calls_to_the_model() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tools = tools_of([{"name": "a", "parameters": parameters, "strict": True}, {"name": "b", "parameters": parameters}])
    requested = GIVEN | {"response_format": {"type": "json_object"}}
    for thinking in (None, Thinking(THINK)):
        response_format = tool_inputs(tools, [], requested, GENERIC, several=False, thinking=thinking)[
            "response_format"
        ]
        text, call = response_format["structural_tag"]["elements"]
        assert text["json_schema"] == {"type": "object"}
        strict, loose = call["elements"]
        assert strict["content"]["json_schema"] == parameters | {"type": "object"}
        assert loose["content"]["json_schema"] == {"type": "object"}
    unknown = tool_inputs(tools, [], requested)
    assert "response_format" not in unknown  # the text alone is held: it is not known how calls look
    separate = tool_inputs(tools, [], requested, GENERIC, thinking=Thinking(HARMONY))
    assert "response_format" not in separate  # what comes before a text is not what comes before a call
    lark = GIVEN | {"response_format": {"type": "lark", "lark": 'start: "a"'}}
    assert "response_format" not in tool_inputs(tools, [], lark, GENERIC)


def test_a_forced_call_is_constrained_by_the_tools_schemas() -> None:
    point = {"type": "object", "properties": {"x": {"type": "int"}, "next": {"$ref": "#/$defs/Point"}}}
    parameters = {"type": "object", "properties": {"p": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": point}}
    tools = tools_of([{"name": name, "parameters": parameters} for name in "ab"])
    one, more = tool_inputs(tools, tools, GIVEN)["response_format"]["structural_tag"]["elements"]
    assert [one["type"], len(one["elements"]), more["max"]] == ["or", 2, 7]
    schema = one["elements"][0]["content"]["json_schema"]
    assert schema["properties"]["p"] == {"$ref": "#/$defs/Point"}
    assert schema["$defs"]["Point"]["properties"]["x"] == {"type": "integer"}
    single = tool_inputs(tools, tools[:1], GIVEN, several=False)["response_format"]["structural_tag"]
    assert (single["type"], single["begin"]) == ("tag", '<tool_call>\n{"name": "a", "arguments": ')


def test_a_schema_that_no_grammar_of_the_format_holds_is_refused_with_the_keyword_at_fault() -> None:
    named = {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False}
    parameters = {"type": "object", "properties": {"x": named}}
    tools = tools_of([{"name": "a", "parameters": parameters}])
    for name in ("gemma4", "lfm2", "olmo3"):
        form = TOOL_CALL_FORMATS[name].formats[0]
        with pytest.raises(
            ApiError, match=r"a call of a cannot be held to its schema: .* the keyword patternProperties"
        ):
            tool_inputs(tools, tools, GIVEN, form)
