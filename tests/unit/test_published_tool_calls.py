"""Published templates that write calls: rendered as ``transformers`` renders them, found out, written and read back."""

import json
from typing import Any

import pytest

from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.templates.tool_call_formats import TOOL_CALL_FORMATS, format_of_template
from tests.support.published_templates import INDEX, published, stop_clocks
from tests.support.tool_calls import parse

# template -> what its calls are written in
FORMATS = {
    "deepseek_v31": "deepseek_v31",
    "deepseek_v32": "deepseek_v32",
    "gemma4": "gemma4",
    "glm45": "glm45",
    "glm47": "glm47",
    "gpt-oss": "openai",
    "granite4": "hermes",
    "kimi_k2": "kimi_k2",
    "lfm2": "lfm2",
    "llama3_1": "llama3_json",
    "minimax_m2": "minimax_m2",
    "ministral3": "mistral",
    "mistral-nemo": "mistral-v3",
    "mistral-small3_2": "mistral-v11",
    "qwen2d5": "hermes",
    "qwen3": "hermes",
    "qwen3_5": "qwen3_coder",
    "qwen3_coder": "qwen3_coder",
    "seed_oss": "seed_oss",
}
ONE_CALL = {"gpt-oss", "llama3_1"}  # all that the template allows
REPORTS_NO_TOOLS = {"deepseek_v31"}
# The template leaves out what is said alongside calls.
SAYS_NOTHING = {"mistral-small3_2", "mistral-nemo", "gpt-oss", "llama3_1", "gemma4"}
PROPERTIES = {
    "city": {"type": "string", "description": "Of the world."},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "hours": {"type": "array", "items": {"type": "number"}},
    "place": {"type": "object", "properties": {"name": {"type": "string"}, "at": {"type": "number"}}},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather: 天气.",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "description": "Now.", "parameters": {"type": "object", "properties": {}}},
}
ARGUMENTS = {
    "city": 'Zürich <b> "old" town',
    "days": 3,
    "exact": True,
    "hours": [1.5, 2],
    "place": {"at": -7, "name": "See"},
}


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch)


def calls_of(name: str) -> list[dict[str, Any]]:
    made = [("get_weather", ARGUMENTS), ("get_time", {})][: 1 if name in ONE_CALL else 2]
    return [
        {
            "id": f"functions.{called}:{number}" if name == "kimi_k2" else f"callid00{number}",
            "type": "function",
            "function": {"name": called, "arguments": arguments},
        }
        for number, (called, arguments) in enumerate(made)
    ]


def conversation(name: str) -> list[dict[str, Any]]:
    calls = calls_of(name)
    results = [
        {"role": "tool", "content": f"{number}°", "tool_call_id": call["id"]} for number, call in enumerate(calls)
    ]
    question = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How is the weather?"}]
    content = "" if name in SAYS_NOTHING else "I look."
    return [*question, {"role": "assistant", "content": content, "tool_calls": calls}, *results]


def template_of(name: str) -> JinjaChatTemplate:
    entry = INDEX[name]
    tokens = {key: value for key, value in (("bos_token", entry["bos"]), ("eos_token", entry["eos"])) if value}
    return JinjaChatTemplate(INDEX[name]["template"], tokens)


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversation_with_calls_is_rendered_as_by_transformers(name: str) -> None:
    messages, tools = conversation(name), None if name in REPORTS_NO_TOOLS else [WEATHER, TIME]
    options = {"date_string": "26 Jul 2024"}
    native = template_of(name).with_options(options).render(messages, tools)
    assert native.removeprefix(INDEX[name]["bos"]) == published(name, messages, tools, **options)


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_known_by_the_template(name: str) -> None:
    assert format_of_template(template_of(name).mentions) == FORMATS[name]


@pytest.mark.parametrize("name", FORMATS)
def test_calls_are_written_and_read_as_published(name: str) -> None:
    calls = calls_of(name)
    question, *_ = conversation(name)[1:]
    prompt = published(name, [question, conversation(name)[2]], [WEATHER, TIME])
    turn = prompt.rpartition("How is the weather?")[2]
    written = TOOL_CALL_FORMATS[FORMATS[name]].formats[0].write(calls)
    assert written in turn
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, TIME)}
    for parser in (FORMATS[name], "auto"):
        found = parse(turn[turn.index(written) :], schemas, parser)
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [
            (call["function"]["name"], call["function"]["arguments"]) for call in calls
        ]


@pytest.mark.parametrize("name", ["kimi_k2", "mistral-nemo", "mistral-small3_2"])
def test_ids_of_other_servers_are_written_as_the_template_wants_them(name: str) -> None:
    question, made, *results = conversation(name)[1:]
    calls = [{**call, "id": f"toolu_{number}-{'x' * 20}"} for number, call in enumerate(made["tool_calls"])]
    answered = [{**result, "tool_call_id": call["id"]} for call, result in zip(calls, results, strict=True)]
    prompt = template_of(name).render([question, {**made, "tool_calls": calls}, *answered], [WEATHER, TIME])
    assert "toolu" not in prompt
    if name == "kimi_k2":
        assert "## Return of functions.get_time:1" in prompt
