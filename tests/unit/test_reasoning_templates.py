"""gpt-oss and SmolLM3: channels, modes of thinking and declarations of tools are written as published.

That plain conversations are is shown with all other templates in ``test_published_templates.py``.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy.model import MODELS
from tests.support.published_templates import published, stop_clocks

USER = {"role": "user", "content": "Hi, 你好"}


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch)


def rendered(name: str, messages: list[dict[str, Any]], tools: Any = None) -> str:
    prompt: str = MODELS.get(name)().render(messages, tools)
    return prompt


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "加 two.", "parameters": parameters}}


def call(name: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"a": 1, "b": "½"}}}


ADD = tool("add", {"type": "object", "properties": {"a": {"type": "number"}}})

names = st.sampled_from(["a", "b", "long_name"])
described = st.fixed_dictionaries({}, optional={"description": st.just("What."), "nullable": st.booleans()})
values = st.one_of(st.integers(0, 9), st.booleans(), st.sampled_from(["x", "ü"]))
leaves = st.one_of(
    st.sampled_from(["string", "number", "integer", "boolean", "object", "array", "null"]).map(lambda k: {"type": k}),
    st.just({}),
    st.just({"type": ["string", "null"]}),
    st.just({"type": ["object"]}),
    st.just({"type": "string", "enum": ["x", "ü"]}),
)


def grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas with others within."""
    properties = st.dictionaries(names, inner, max_size=3)
    variants = st.builds(lambda schema, more: schema | more, inner, with_default)
    return st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        st.builds(objects, properties, st.lists(names, max_size=2)),
        st.lists(variants, min_size=1, max_size=3).map(lambda one: {"oneOf": one}),
    )


def objects(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


with_default = st.builds(
    lambda more, default: more | default, described, st.fixed_dictionaries({}, optional={"default": values})
)
schemas = st.builds(lambda schema, more: schema | more, st.recursive(leaves, grown, max_leaves=6), with_default)
# The published template joins a default of these to text as it is, which must be text.
reported = schemas.map(lambda s: s | {"default": "x"} if "default" in s and ("enum" in s or "oneOf" in s) else s)


@settings(max_examples=300)
@given(properties=st.dictionaries(names, reported, max_size=3), required=st.lists(names, max_size=2))
def test_gpt_oss_declares_tools_as_published(properties: dict[str, Any], required: list[str]) -> None:
    tools = [tool("first", objects(properties, required)), tool("second", {"type": "object"})]
    assert rendered("gpt-oss", [USER], tools) == published("gpt-oss", [USER], tools)


@pytest.mark.parametrize("fields", [{"content": "I add."}, {"content": "", "thinking": "I add."}, {"content": ""}])
@pytest.mark.parametrize("is_answered", [True, False])
def test_gpt_oss_keeps_what_it_thought_before_calls_until_it_answered(
    fields: dict[str, Any], is_answered: bool
) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", **fields, "tool_calls": [call("add", "1")]},
        {"role": "tool", "content": 'a "½"', "tool_call_id": "1"},
    ]
    if is_answered:
        messages += [{"role": "assistant", "content": "2", "thinking": "So."}, USER]
    assert rendered("gpt-oss", messages, [ADD]) == published("gpt-oss", messages, [ADD])
    assert ("I add." in rendered("gpt-oss", messages)) == (not is_answered and fields != {"content": ""})


def test_results_for_gpt_oss_are_named_after_their_own_calls() -> None:
    """The published template knows one call a response only."""
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call("add", "1"), call("now", "2")]},
        {"role": "tool", "content": "noon", "tool_call_id": "2"},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    requested = '<|channel|>commentary json<|message|>{"a": 1, "b": "½"}<|call|>'
    returned = " to=assistant<|channel|>commentary<|message|>"
    assert rendered("gpt-oss", messages).endswith(
        f"<|start|>assistant to=functions.add{requested}<|start|>assistant to=functions.now{requested}"
        f'<|start|>functions.now{returned}"noon"<|end|><|start|>functions.add{returned}"2"<|end|><|start|>assistant'
    )


def test_a_result_that_gpt_oss_did_not_ask_for_is_refused_unless_it_is_named() -> None:
    result = {"role": "tool", "content": "2", "tool_call_id": "1"}
    with pytest.raises(ValueError, match="must follow the call it answers, or report the function's name"):
        rendered("gpt-oss", [USER, result])
    assert "<|start|>functions.add to=assistant" in rendered("gpt-oss", [USER, {**result, "name": "add"}])


SYSTEMS = ["", "Be brief.  ", "/no_think", "Be brief. /no_think", "/think Be /no_think brief.", "Be brief./think"]
OVERRIDES = ["/system_override", "Be brief. /system_override ", "/system_override Be brief./no_think"]
TURNS = [USER, {"role": "assistant", "content": "\n\nHello!"}, {"role": "tool", "content": "2"}, USER]


@pytest.mark.parametrize("system", SYSTEMS + OVERRIDES)
@pytest.mark.parametrize("tools", [None, [ADD, tool("now", {"type": "object"})]], ids=["no tools", "tools"])
def test_smollm3_writes_modes_and_tools_as_published(system: str, tools: Any) -> None:
    messages = [{"role": "system", "content": system}, *TURNS]
    assert rendered("smollm3", messages, tools) == published("smollm3", messages, tools)


def test_smollm3_lists_tools_without_a_system_prompt_as_published() -> None:
    assert rendered("smollm3", TURNS, [ADD]) == published("smollm3", TURNS, [ADD])


def test_calls_of_smollm3_are_written_as_it_is_reported_to_make_them() -> None:
    """The published template leaves them out."""
    messages = [USER, {"role": "assistant", "content": "I add.", "tool_calls": [call("add", "1")]}]
    assert rendered("smollm3", messages, [ADD]).endswith(
        'assistant\nI add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "½"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>assistant\n"
    )
