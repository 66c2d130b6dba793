"""Tools, calls and results as the three families saw them in training: whole prompts, written out by hand."""

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

QWEN = (
    "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    f'{{"type": "function", "function": {FUNCTION}}}\n</tools>\n\n'
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
    'tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n1+2, 3+4?<|im_end|>\n"
    '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
)
INTERNLM2 = (
    f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>system name=<|plugin|>\n[{FUNCTION}]<|im_end|>\n"
    "<|im_start|>user\n1+2, 3+4?<|im_end|>\n<|im_start|>assistant\n"
    '<|action_start|><|plugin|>\n{"name": "add", "parameters": {"a": 1, "b": 2}}<|action_end|><|im_end|>\n'
    "<|im_start|>environment\n3<|im_end|>\n<|im_start|>assistant\n"
)
LLAMA31 = (
    "<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, please respond with a JSON for a "
    "function call with its proper arguments that best answers the given prompt.\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. '
    f"Do not use variables.\n\n{json.dumps(TOOL, indent=4)}\n\n1+2, 3+4?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "add", "parameters": {"a": 1, "b": 2}}<|eot_id|>'
    "<|start_header_id|>ipython<|end_header_id|>\n\n3<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)


@pytest.mark.parametrize(
    ("name", "messages", "prompt"),
    [("qwen2d5", CONVERSATION, QWEN), ("internlm2", ONE_CALL, INTERNLM2), ("llama3_1", ONE_CALL, LLAMA31)],
)
def test_a_conversation_with_tools_is_written_as_in_training(name: str, messages: Any, prompt: str) -> None:
    assert MODELS.get(name)().render(messages, [TOOL]) == prompt


@pytest.mark.parametrize("name", ["qwen2d5", "internlm2", "llama3_1"])
def test_what_a_template_writes_the_parser_reads(name: str) -> None:
    template = MODELS.get(name)()
    prompt = template.render(CONVERSATION[:3], [TOOL], add_generation_prompt=False)
    answer = prompt.rpartition("assistant\n" if "im_start" in prompt else "<|end_header_id|>\n\n")[2]
    for end in ("<|im_end|>\n", "<|eot_id|>"):
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
