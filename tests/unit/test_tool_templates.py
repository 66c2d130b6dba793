"""Tools, calls and results where no Jinja template was published, and whether the gateway reads what is written.

The other families are compared with their published templates in ``test_published_templates.py``.
"""

import json
from typing import Any

import pytest

from lmdeploy.model import MODELS
from lmdeploy.templates.calls import parsed_arguments
from lmdeploy.templates.jinja import JinjaChatTemplate
from tests.support.published_templates import INDEX, published
from tests.support.tool_calls import parse

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
FUNCTION = '{"name": "add", "description": "Add.", "parameters": {"type": "object"}}'


PUBLISHED = INDEX["deepseek-v3"]["template"]


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1+2, 3+4?"},
    {"role": "assistant", "content": "", "tool_calls": [call("add", '{"a": 1, "b": 2}'), call("add", '{"a": 3}')]},
    {"role": "tool", "content": "3", "tool_call_id": "add"},
    {"role": "tool", "content": "7", "tool_call_id": "add"},
]
ONE_CALL: list[dict[str, Any]] = [
    *CONVERSATION[:2],
    {"role": "assistant", "content": "", "tool_calls": [call("add", '{"a": 1, "b": 2}')]},
    CONVERSATION[3],
]

INTERNLM2 = (
    f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>system name=<|plugin|>\n[{FUNCTION}]<|im_end|>\n"
    "<|im_start|>user\n1+2, 3+4?<|im_end|>\n<|im_start|>assistant\n"
    '<|action_start|><|plugin|>\n{"name": "add", "parameters": {"a": 1, "b": 2}}<|action_end|><|im_end|>\n'
    "<|im_start|>environment\n3<|im_end|>\n<|im_start|>assistant\n"
)


def test_internlm2_writes_tools_calls_and_results_as_in_training() -> None:
    assert MODELS.get("internlm2")().render(ONE_CALL, [TOOL]) == INTERNLM2


VERBATIM = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
KNOWN_ROLES = (
    "{% for m in messages %}{% if m.role in ('user', 'tool') %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            MODELS.get("internlm2")(),
            "<|im_start|>environment name=<|interpreter|>\n3<|im_end|>\n<|im_start|>assistant\n",
        ),
        (JinjaChatTemplate(VERBATIM), "[environment]3"),
        (JinjaChatTemplate(KNOWN_ROLES), "[tool]3"),
    ],
    ids=["by its own name", "as it is", "as a tool's"],
)
def test_a_result_of_internlm_s_role_environment_is_not_lost(template: Any, expected: str) -> None:
    messages = [{"role": "user", "content": "1+2?"}, {"role": "environment", "name": "interpreter", "content": "3"}]
    assert template.render(messages).endswith(expected)


def test_a_result_may_be_an_object() -> None:
    prompt = MODELS.get("internlm2")().render([*ONE_CALL[:-1], {"role": "tool", "content": {"sum": 3}}])
    assert '\n{"sum": 3}<|im_end|>\n' in prompt


def test_internlm2_names_whom_a_system_prompt_is_for() -> None:
    prompt = MODELS.get("internlm2")().render([{**CONVERSATION[0], "name": "interpreter"}, CONVERSATION[1]], [TOOL])
    named = [f"<|im_start|>system name=<|{name}|>\n" for name in ("interpreter", "plugin")]
    assert prompt.startswith(f"{named[0]}Be brief.<|im_end|>\n{named[1]}[{FUNCTION}]<|im_end|>\n<|im_start|>user\n")


# Nobody trained chatml for tools, nor llama2, which has a system prompt in the first turn of the user.
GENERIC = (
    "<|im_start|>system\nBe brief.\n\nYou can call functions. Here they are, a JSON object a line:\n"
    f"<tools>\n{FUNCTION}\n</tools>\n"
    "To call one, write its name and its arguments like this, once for each call, and then stop:\n"
    '<tool_call>\n{"name": "the function\'s name", "arguments": {"an argument": "its value"}}\n</tool_call>\n'
    "Its result comes to you between <tool_response> and </tool_response>. Where no function is of use, "
    "answer in words.<|im_end|>\n"
    "<|im_start|>user\n1+2, 3+4?<|im_end|>\n<|im_start|>assistant\n"
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n7\n</tool_response>\n\nAnd 5+6?"
    "<|im_end|>\n<|im_start|>assistant\n"
)
NEXT = {"role": "user", "content": "And 5+6?"}
# Templates as some models bring along, and what is wrong with system prompts and two turns of the user in a row there.
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def test_a_template_without_tools_reports_of_them_in_words() -> None:
    assert MODELS.get("chatml")().render([*CONVERSATION, NEXT], [TOOL]) == GENERIC


def test_where_system_prompts_are_refused_tools_begin_the_first_turn() -> None:
    prompt = JinjaChatTemplate(ALTERNATING).render([*CONVERSATION[1:], NEXT], [TOOL])
    reported = GENERIC[GENERIC.index("You can call") : GENERIC.index("<|im_end|>")]
    assert prompt.startswith(f"[user]{reported}\n\n1+2, 3+4?[assistant]<tool_call>")
    assert prompt.endswith("\n</tool_response>\n\nAnd 5+6?")


def test_calls_stay_in_the_conversation_when_no_tools_may_be_used_any_more() -> None:
    prompt = MODELS.get("chatml")().render([*CONVERSATION, NEXT])
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n" + GENERIC[GENERIC.index("<|im_start|>user") :]


@pytest.mark.parametrize("with_tools", [False, True])
def test_deepseek_s_calls_and_results_have_their_marks_whether_or_not_tools_are_reported(with_tools: bool) -> None:
    turns = [*CONVERSATION[1:], {"role": "assistant", "content": "3 and 7."}, NEXT]
    system = []
    for template in (MODELS.get("deepseek-v3")(), JinjaChatTemplate(PUBLISHED, {"bos_token": ""})):
        prompt = template.render(turns, [TOOL] if with_tools else None)
        head, opening, tail = prompt.partition("<｜User｜>1+2")
        assert opening + tail == published("deepseek-v3", turns)
        system.append(head)
    example = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>the function's name\n```json\n"
        '{"an argument": "its value"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\nWhere no function is of use'
    )
    assert all(example in head and FUNCTION in head and "tool_response" not in head for head in system) == with_tools
    assert system[0] == system[1]


def test_the_usual_system_prompt_stays_before_tools() -> None:
    prompt = MODELS.get("smollm2")().render(CONVERSATION[1:2], [TOOL])
    assert "You are a helpful AI assistant named SmolLM, trained by Hugging Face\n\nYou can call" in prompt


READ = [
    "deepseek-v3",
    "qwen2d5",
    "internlm2",
    "llama3_1",
    "mistral-v3",
    "mistral-nemo",
    "glm4",
    "chatml",
    "llama2",
]


@pytest.mark.parametrize("name", READ)
def test_what_a_template_writes_the_parser_reads(name: str) -> None:
    template = MODELS.get(name)()
    whole = template.render(CONVERSATION[:3], [TOOL], add_generation_prompt=False)
    requested = template.render(CONVERSATION[:2], [TOOL])
    assert whole.startswith(requested)
    response = whole.removeprefix(requested)
    for end in ("<|im_end|>\n", "<|eot_id|>", "</s>", " ", "<｜end▁of▁sentence｜>"):
        response = response.removesuffix(end)
    found = parse(response, frozenset({"add"}))
    assert [(made.name, json.loads(made.arguments)) for made in found.calls] == [
        ("add", {"a": 1, "b": 2}),
        ("add", {"a": 3}),
    ]
    assert found.text == ""


def test_arguments_become_objects_unless_they_are_no_json() -> None:
    messages = [{"role": "assistant", "content": "", "tool_calls": [call("f", '{"a": 1}'), call("g", "{a}")]}]
    first, second = parsed_arguments(messages)[0]["tool_calls"]
    assert first["function"]["arguments"] == {"a": 1}
    assert second["function"]["arguments"] == "{a}"
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
