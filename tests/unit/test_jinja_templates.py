"""Jinja templates of checkpoints: rendered as ``transformers`` does, and calls written and read back."""

import json
from typing import Any

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from lmdeploy.templates.calls import parsed_arguments
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.templates.tool_call_formats import TOOL_CALL_FORMATS, format_of_template
from tests.support.published_templates import INDEX, published, stop_clocks
from tests.support.tool_calls import parse

Template = str | dict[str, str]

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "Hi, 你好 <b>&'\" "}
CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": '{"x": "ü"}'}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [USER],
    "turns": [USER, {"role": "assistant", "content": " Hello!\n"}, {"role": "user", "content": "\nand now? "}],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "reasoning": [USER, {"role": "assistant", "content": "x", "reasoning": "why"}, USER],
    "empty keys": [USER, {"role": "assistant", "content": "x", "tool_calls": None, "name": None}, USER],
    "calls": [USER, CALLED, {"role": "tool", "content": "42", "name": "f", "tool_call_id": "call00001"}],
}
# The same calls for templates that know nothing of tools.
CALLS_AS_TEXTS = [
    USER,
    {"role": "assistant", "content": '<tool_call>\n{"name": "f", "arguments": {"x": "ü"}}\n</tool_call>'},
    {"role": "user", "content": "<tool_response>\n42\n</tool_response>"},
]
# Kimi K2's template shows results by ids that name the function: other servers' ids become such ones.
KIMI_ID = "functions.f:0"
PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "ä"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Does.", "parameters": PARAMETERS}}]
# Constructs of the language, beyond those of the published templates.
CONSTRUCTS = {
    "blocks": "  {% for m in messages %}\n  {{ m.content }}\n  {% endfor %}\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "generation": "{% set x = 1 %}{% generation %}{% set x = 2 %} a {{ x }}{% endgeneration %}{{ x }}",
    "json": "{{ messages | tojson }}{{ {'b': 'ü<', 'a': 1} | tojson(indent=2, sort_keys=true, ensure_ascii=true) }}",
    "namespace": "{% set ns = namespace(self=1) %}{% for m in [2] %}{% set ns.self = m %}{% endfor %}{{ ns.self }}",
    "dict": "{{ dict(a=1).a }}{{ dict.fromkeys('ab', 0) }}{{ tools is none }}{{ documents is none }}",
    "clock": "{{ strftime_now('%Y-%m-%d %H:%M') }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}",
}
REJECTED = {
    "raised": "{{ raise_exception('no') }}",
    "private attribute of a namespace": "{% set ns = namespace(a=1) %}{% set ns.__class__ = 2 %}",
    "private attribute given": "{{ namespace(_x=1) }}",
    "python": "{{ messages.__class__.__mro__ }}",
    "changed list": "{{ messages.append(1) }}",
    "dict is a function": "{{ dict.mro() }}",
}


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch)


def by_transformers(template: Template, messages: list[dict[str, Any]], tools: Any, generation: bool) -> Any:
    """Return the prompt, or the kind of its refusal."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, "?")),
        chat_template=template,
        **SPECIAL,
    )
    forms = [parsed_arguments(messages), messages]  # most read a call's arguments as an object, some as text
    if messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):  # some refuse system prompts
        first = {**messages[1], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
        forms.append([first, *messages[2:]])
    for given in forms:
        try:
            return tokenizer.apply_chat_template(given, tools, tokenize=False, add_generation_prompt=generation)
        except Exception:  # whatever the template's author, or a message that it did not expect, led to
            continue
    return ValueError


def rendered(template: Template, messages: list[dict[str, Any]], tools: Any, generation: bool) -> Any:
    try:
        return JinjaChatTemplate(template, SPECIAL).render(messages, tools, generation)
    except ValueError:
        return ValueError


@pytest.mark.parametrize("name", INDEX)
def test_a_published_template_is_rendered_as_transformers_does_and_takes_tools(name: str) -> None:
    template = INDEX[name]["template"]
    for conversation, messages in CONVERSATIONS.items():
        shown = CALLS_AS_TEXTS if conversation == "calls" and "tool" not in template else messages
        if name == "kimi_k2":
            shown = json.loads(json.dumps(messages).replace("call00001", KIMI_ID))
        for generation in (True, False):
            assert rendered(template, messages, None, generation) == by_transformers(template, shown, None, generation)
        if "tools" in template and name != "glm4":  # GLM-4's reads those of a message
            assert rendered(template, messages, TOOLS, True) == by_transformers(template, shown, TOOLS, True)
    prompt = JinjaChatTemplate(template, SPECIAL).render(CONVERSATIONS["calls"], TOOLS)
    for reported in ("Does.", "42") if name == "smollm3" else ("Does.", "ü", "42"):  # SmolLM3's writes no calls
        assert reported in prompt


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_the_language_of_templates_is_that_of_transformers(construct: str) -> None:
    messages = CONVERSATIONS["turns"]
    expected = by_transformers(CONSTRUCTS[construct], messages, None, True)
    assert isinstance(expected, str)
    assert rendered(CONSTRUCTS[construct], messages, None, True) == expected


@pytest.mark.parametrize("construct", REJECTED)
def test_a_template_is_kept_from_what_is_not_its_own(construct: str) -> None:
    assert by_transformers(REJECTED[construct], [USER], None, True) is ValueError
    with pytest.raises(ValueError, match="refused by the model's chat template"):
        JinjaChatTemplate(REJECTED[construct], SPECIAL).render([USER])


def test_of_several_templates_the_one_for_tools_is_for_tools() -> None:
    templates = {"default": "plain", "tool_use": "with {{ tools | tojson }}"}
    for tools in (None, TOOLS):
        assert rendered(templates, [USER], tools, True) == by_transformers(templates, [USER], tools, True)
    assert JinjaChatTemplate(templates).render([USER], TOOLS) == f"with {json.dumps(TOOLS, ensure_ascii=False)}"
    with pytest.raises(ValueError, match="no default, only other, tool_use"):
        JinjaChatTemplate({"other": "x", "tool_use": "y"}).render([USER])


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
