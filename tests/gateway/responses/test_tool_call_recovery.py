"""Near misses of calls, which are read where that is wanted, and ordinary answers, which are none."""

import asyncio
import json
import random
from itertools import pairwise, product
from typing import Any

import pytest

from lmdeploy.templates.thinking import THINK, Thinking
from openai_gateway.tools.parser import ToolCallParser
from tests.gateway.responses.test_scripted_responses import Response, Scripted
from tests.support.tool_calls import streamed

NAMES = {name: dict[str, Any]() for name in ("get_weather", "read_file")}
NAMES |= {"add": {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "string"}}}}
ADD = '{"name": "add", "arguments": {"a": 1, "b": "x"}}'
ADDED: Any = [("add", {"a": 1, "b": "x"})]
WEATHER = '{"name": "get_weather", "parameters": {"place": "```"}}'
BOTH: Any = [*ADDED, ("get_weather", {"place": "```"})]
CODER = "<tool_call>\n<function=add>\n<parameter=a>\n[1]\n</parameter>\n<parameter=b>\nx\n</parameter>\n"
CODED: Any = [("add", {"a": [1], "b": "x"})]

# the model's format, what it says, the calls, how they are not quite as the format has them
MISSES: dict[str, tuple[str, str, Any, str]] = {
    "bare": ("hermes", ADD, ADDED, "object"),
    "fenced": ("auto", f"```json\n{ADD}\n```", ADDED, "object"),
    "fenced, of no language": ("qwen3_coder", f"\n```\n{ADD}```\n", ADDED, "object"),
    "several in a fence": ("hermes", f"```json\n{ADD}\n{WEATHER}\n```", BOTH, "object"),
    "several fences": ("auto", f"```json\n{ADD}\n```\n\n```json\n{WEATHER}\n```", BOTH, "object"),
    "a list": ("auto", f"```json\n[{ADD}, {WEATHER}]\n```", BOTH, "object"),
    "a fence that is open": ("auto", f"```tool_call\n{ADD}", ADDED, "object"),
    "arguments as text": (
        "hermes",
        '```\n{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": \\"x\\"}"}```',
        ADDED,
        "object",
    ),
    "arguments that are null": ("hermes", '{"name": "add", "arguments": null}', [("add", {})], "object"),
    "another family": ("hermes", f"Well.[TOOL_CALLS][{ADD}]", ADDED, "format"),
    "another family, with tags": ("mistral", f"Well.{CODER}</function></tool_call>", CODED, "format"),
    "another family, alone": ("gemma4", f"Well.<tool_call>{ADD}</tool_call>", ADDED, "format"),
    "a comma before the end": ("hermes", f"Well.<tool_call>{ADD[:-2]},}}, }}</tool_call>", ADDED, "comma"),
    "commas in a list": ("mistral", f"[TOOL_CALLS][{ADD[:-2]} , }}}}]", ADDED, "comma"),
    "a comma behind a head": ("mistral", 'Well.[TOOL_CALLS]add[ARGS]{"a": 1, "b": "x",\n}', ADDED, "comma"),
    "no last brace": ("hermes", f"<tool_call>{ADD[:-1]}</tool_call>", ADDED, "unclosed"),
    "no end": ("hermes", f"<tool_call>{ADD[:-1]}", ADDED, "unclosed"),
    "no closing tags": ("qwen3_coder", CODER, CODED, "unclosed"),
    "Python": (
        "hermes",
        "Well.<tool_call>{'name': 'add', 'arguments': {'a': 1, 'b': 'x',}}</tool_call>",
        ADDED,
        "python",
    ),
    "Python's list": (
        "lfm2",
        "<|tool_call_start|>[{'name': 'add', 'arguments': {'a': 1, 'b': 'x'}}]<|tool_call_end|>",
        ADDED,
        "python",
    ),
}


def found(pieces: list[str], parser: str, *, recovers: bool) -> tuple[str, Any, list[str]]:
    """Return text and calls as a client adds them up from a stream, and how they were recovered."""
    reader = ToolCallParser(NAMES, parser=parser, recovers=recovers)
    text, calls = streamed(pieces, reader)
    return text, [(name, json.loads(arguments)) for name, arguments in calls], reader.recovered


@pytest.mark.parametrize("case", MISSES)
def test_a_near_miss_is_a_call_however_it_is_cut(case: str) -> None:
    parser, text, calls, kind = MISSES[case]
    expected = ("Well." if text.startswith("Well.") else "", calls, [kind] * len(calls))
    assert found([text], parser, recovers=True) == expected
    assert found(list(text), parser, recovers=True) == expected


@pytest.mark.parametrize("case", MISSES)
def test_a_near_miss_is_text_where_it_is_to_be(case: str) -> None:
    parser, text, _, _ = MISSES[case]
    assert found(list(text), parser, recovers=False) == (text, [], [])


@pytest.mark.parametrize("recovers", [True, False])
def test_near_misses_are_counted(*, recovers: bool) -> None:
    async def run() -> tuple[int, str]:
        model = Scripted(tool_call_recovery=recovers)
        model.says(list(f"```json\n{ADD}\n```"), "auto", None)
        response = await model.request("chat", NAMES, streams=True)
        return len(response.calls), (await model.http.get("/metrics")).text

    calls, page = asyncio.run(run())
    assert calls == recovers
    assert ('tool_calls_recovered_total{kind="object",model_name="m"} 1.0' in page) is recovers


@pytest.mark.parametrize("streams", [True, False])
def test_a_forced_call_that_a_stop_word_ends_early_is_a_call(*, streams: bool) -> None:
    """No grammar of a forced call holds where a stop word is: ``tool_choice`` changes nothing about near misses."""

    async def run() -> list[tuple[str, Any]]:
        model = Scripted()
        model.says(list(f"<tool_call>{ADD[:-1]}"), "hermes", None)
        response = await model.request("chat", NAMES, streams=streams, tool_choice="required")
        return [(name, json.loads(arguments)) for name, arguments in response.calls]

    assert asyncio.run(run()) == ADDED


BEFORE, END = "<think>Let me.\n<tool_call>", "\n</think>\n\n"
HEAD = '{"name": "add", "arguments": {"a": 1, "b": "'
# what the model says before the budget ends its reasoning, and after; the reasoning, the content, the calls
BUDGETS: dict[str, tuple[str, str, str, str, Any]] = {
    "it goes on": (HEAD[:9], f'{HEAD[9:]}x"}}}}</tool_call>', "Let me.", "", ADDED),
    "it goes on in a text": (HEAD, 'x"}}</tool_call>\nSo.', "Let me.", "\nSo.", ADDED),
    "it begins anew": (HEAD, f"<tool_call>{ADD}</tool_call>", f"Let me.\n<tool_call>{HEAD}", "", ADDED),
    "it answers": (HEAD, 'It is "x".', f"Let me.\n<tool_call>{HEAD}", 'It is "x".', []),
}


@pytest.mark.parametrize("case", BUDGETS)
def test_a_budget_that_ends_reasoning_in_a_call_loses_no_call(case: str) -> None:
    before, after, reasoning, content, calls = BUDGETS[case]
    pieces = [*BEFORE, *before, END]

    async def run(*, streams: bool, budget: int) -> Response:
        model = Scripted()
        model.says([*pieces, *after], "hermes", Thinking(THINK))
        thinking = {"type": "enabled", "budget_tokens": budget}
        read = await model.request("messages", NAMES, streams=streams, thinking=thinking)
        return Response(read.reasoning, read.content, read.calls)

    for streams in (True, False):
        expected = Response(reasoning, content, calls)
        assert asyncio.run(run(streams=streams, budget=len(pieces))) == expected
    early = asyncio.run(run(streams=True, budget=1024))  # the model itself ended it: all of that is a draft
    assert early.calls == (ADDED if case == "it begins anew" else [])


@pytest.mark.parametrize("case", [case for case in MISSES if MISSES[case][3] == "object"])
def test_nothing_is_guessed(case: str) -> None:
    """Another name, or a word of prose: all of it is text."""
    parser, text, _, _ = MISSES[case]
    for wrong in (text.replace("add", "sum"), f"So: {text}", f"{text} Done."):
        assert found(list(wrong), parser, recovers=True) == (wrong, [], [])


OBJECTS = (
    '{"name": "Alice", "age": 30}',
    '{"name": "add", "version": "1.0.0", "dependencies": {}}',
    '{"name": "get_weather", "description": "Gets it", "parameters_schema": {"type": "object"}}',
    '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}',
    '{"tool": "add", "arguments": {"a": 1}}',
    '{"name": "sum", "arguments": {"a": 1}}',
    '[{"name": "add"}, {"name": "read_file"}]',
    '{"id": 7, "name": "read_file", "size": null}',
    '{"arguments": {"a": 1}, "result": 2}',
    "{'name': 'Alice', 'tags': ['a', 'b',]}",
)
SHOWN = (
    "{0}",
    "```json\n{0}\n```",
    "```\n{0}\n```",
    "Here is an example:\n\n```json\n{0}\n```",
    "```json\n{0}\n```\nThis is what a reply looks like.",
    "First:\n```json\n{0}\n```\nthen:\n```json\n{0}\n```\n",
    "`{0}` is what you send.",
    "1. Send {0}.\n2. Wait.",
    "```python\npayload = {0}\n```",
    "> {0}\n\nas the documentation has it",
)
CALLS = (
    "So you write\n```json\n{0}\n```",
    "```json\n{0}\n```\nwould add them.",
    "Send `{0}`.",
    "```python\nx = {0}\n```",
)
ORDINARY = [shown.format(value) for shown, value in product(SHOWN, OBJECTS)]
ORDINARY += [shown.format(value) for shown, value in product(CALLS, (ADD, WEATHER, ADD.replace(" ", "")))]
ORDINARY += [f"{text}\n\nAnything else?" for text in ORDINARY[: 200 - len(ORDINARY)]]


@pytest.mark.parametrize("parser", ["auto", "hermes", "mistral", "qwen3_coder"])
def test_ordinary_answers_are_no_calls(parser: str) -> None:
    assert len(ORDINARY) == 200
    for number, text in enumerate(ORDINARY):
        rng = random.Random(number)
        cuts = [0, *sorted(rng.sample(range(1, len(text)), min(9, len(text) - 1))), len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(cuts)]
        assert found(pieces, parser, recovers=True) == (text, [], []), text
