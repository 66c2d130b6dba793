"""Tools, calls and results where no Jinja template was published, and whether the gateway reads what is written.

The other families are compared with their published templates in ``test_published_templates.py``.
"""

import json
from typing import Any

import pytest

from lmdeploy.model import MODELS
from lmdeploy.templates.tool_calling import parsed_arguments
from openai_gateway.tools.parser import parse

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
FUNCTION = '{"name": "add", "description": "Add.", "parameters": {"type": "object"}}'


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


READ = ["qwen2d5", "internlm2", "llama3_1", "mistral-v3", "mistral-nemo", "glm4", "smollm3"]


@pytest.mark.parametrize("name", READ)
def test_what_a_template_writes_the_parser_reads(name: str) -> None:
    template = MODELS.get(name)()
    whole = template.render(CONVERSATION[:3], [TOOL], add_generation_prompt=False)
    asked = template.render(CONVERSATION[:2], [TOOL])
    assert whole.startswith(asked)
    answer = whole.removeprefix(asked)
    for end in ("<|im_end|>\n", "<|eot_id|>", "</s>"):
        answer = answer.removesuffix(end)
    found = parse(answer, frozenset({"add"}))
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
