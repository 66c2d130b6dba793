"""The built-in chat templates write what the templates published with the models write.

Those are rendered by ``transformers``, see ``tests/support/published_templates.py``. Where the authors published no
Jinja template, the prompts are written out by hand in ``test_described_templates.py``.
"""

from typing import Any

import pytest

from lmdeploy.model import MODELS
from tests.support.published_templates import INDEX, published, stop_clocks

USER = {"role": "user", "content": "Hi, 你好"}
TURNS = [USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "and now?"}]
SYSTEM = {"role": "system", "content": "Be brief."}
SPACES = [
    {"role": "user", "content": "  Hi\n"},
    {"role": "assistant", "content": " \n Hello! "},
    {"role": "user", "content": "\nand now? "},
]

# built-in -> published
PUBLISHED = {name: name for name in INDEX if name in MODELS.names()} | {
    "codellama": "llama2",
    "internlm3": "internlm2",
    "internvl-internlm2": "internlm2",
    "internvl2_5": "internlm2",
    "minicpmv-2d6": "qwen",
    "smollm": "chatml",
}
# Aliases whose models have templates of their own.
PUBLISHED |= {"deepseek-v2": "deepseek-v2", "gemma3": "gemma3", "phi-3.5": "phi-3.5"}
# They have the authors' system prompt where the published Jinja template has none; see docs/guides/chat-templates.md.
OWN_SYSTEM = {"internlm2", "internlm3", "internvl-internlm2", "internvl2_5"}
# The published template refuses or ignores a system prompt.
NO_SYSTEM = {"mixtral", "gemma", "chatglm"}
# The published template puts the system prompt into the last turn of the user, and only there.
SYSTEM_IN_LAST_TURN = {"mistral-v3", "mistral-nemo"}
# The published template strips responses alone.
STRIPS_ANSWERS = {"mistral-v3"}


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch)


def rendered(name: str, messages: list[dict[str, Any]], tools: Any = None) -> str:
    """Return the prompt the built-in template writes, without what the tokenizer puts before every text."""
    return MODELS.get(name)().render(messages, tools).removeprefix(INDEX[PUBLISHED[name]]["bos"])


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("messages", [[USER], TURNS], ids=["one turn", "turns"])
def test_a_conversation_without_system_prompt_is_written_as_published(
    name: str, messages: list[dict[str, Any]]
) -> None:
    reported = [{"role": "system", "content": MODELS.get(name)().meta_instruction}] if name in OWN_SYSTEM else []
    assert rendered(name, messages) == published(PUBLISHED[name], [*reported, *messages])


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - NO_SYSTEM))
@pytest.mark.parametrize("messages", [[USER], TURNS], ids=["one turn", "turns"])
def test_a_system_prompt_is_written_as_published(name: str, messages: list[dict[str, Any]]) -> None:
    if name in SYSTEM_IN_LAST_TURN and messages is TURNS:
        first = {"role": "user", "content": f"{SYSTEM['content']}\n\n{USER['content']}"}
        assert rendered(name, [SYSTEM, *TURNS]) == published(PUBLISHED[name], [first, *TURNS[1:]])
    else:
        assert rendered(name, [SYSTEM, *messages]) == published(PUBLISHED[name], [SYSTEM, *messages])


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - STRIPS_ANSWERS))
def test_white_space_around_contents_is_kept_or_stripped_as_published(name: str) -> None:
    reported = [{"role": "system", "content": MODELS.get(name)().meta_instruction}] if name in OWN_SYSTEM else []
    assert rendered(name, SPACES) == published(PUBLISHED[name], [*reported, *SPACES])


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers: 加.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
OTHER_TOOL = {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object"}}}


def call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def with_calls(count: int, *, arguments: Any = None) -> list[dict[str, Any]]:
    """Return a conversation with as many calls in one response."""
    made = [call("add", arguments or {"a": 1, "b": i}, f"callid00{i}") for i in range(count)]
    returned = [{"role": "tool", "content": f"{1 + i}", "tool_call_id": f"callid00{i}"} for i in range(count)]
    return [USER, {"role": "assistant", "content": "", "tool_calls": made}, *returned]


# name -> how many calls its published template allows in one response
WITH_TOOLS = {"qwen2d5": 2, "qwen3": 2, "llama3_1": 1, "llama3_2": 1, "mistral-v3": 2, "mistral-nemo": 2}
WITH_TOOLS["deepseek-v4"] = 2


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("has_system", [True, False])
def test_tools_calls_and_results_are_written_as_published(name: str, has_system: bool) -> None:
    system = [SYSTEM] if has_system and name not in SYSTEM_IN_LAST_TURN else []
    for messages in ([USER], with_calls(1), with_calls(WITH_TOOLS[name])):
        expected = published(name, [*system, *messages], [TOOL, OTHER_TOOL])
        # Llama's published template quotes a result that is a string, which Meta's description of the format does not.
        expected = expected.replace('\n\n"1"<|eot_id|>', "\n\n1<|eot_id|>")
        assert rendered(name, [*system, *messages], [TOOL, OTHER_TOOL]) == expected


def test_what_a_tool_says_in_words_becomes_a_json_string_for_mistral() -> None:
    prompt = rendered("mistral-v3", [USER, {"role": "tool", "content": 'It is "5".', "tool_call_id": "callid000"}])
    assert prompt.endswith('[TOOL_RESULTS] {"content": "It is \\"5\\".", "call_id": "callid000"}[/TOOL_RESULTS]')


def test_glm4_writes_tools_as_published() -> None:
    """Its published template reads tools from a system message, and calls as messages with the name as metadata."""
    tools = {"role": "system", "tools": [TOOL, OTHER_TOOL]}
    made = {"role": "assistant", "metadata": "add", "content": '{"a": 1, "b": 0}'}
    expected = published("glm4", [tools, SYSTEM, USER, made, {"role": "observation", "content": "1"}])
    # `transformers` drops a line end after a block of Jinja; the authors' code, tokenization_chatglm.py, has it.
    expected = expected.replace("\n## ", "\n\n## ")
    assert rendered("glm4", [SYSTEM, *with_calls(1)], [TOOL, OTHER_TOOL]) == expected


@pytest.mark.parametrize("name", ["qwen3", "deepseek-v3"])
def test_reasoning_before_the_last_question_is_left_out_as_published(name: str) -> None:
    thought = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello!"}
    messages = [USER, thought, USER]
    assert rendered(name, messages) == published(name, messages)
    assert "Hm." not in rendered(name, messages)


def test_reasoning_after_a_call_is_kept_until_the_next_question_as_published() -> None:
    question, made, *returned = with_calls(1)
    messages = [question, {**made, "content": "<think>\nHm.\n</think>\n\nI add."}, *returned]
    assert rendered("qwen3", messages, [TOOL]) == published("qwen3", messages, [TOOL])
    assert "Hm." in rendered("qwen3", messages, [TOOL])


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("thinking", [False, True])
def test_deepseek_v4_reasons_as_published_where_it_is_asked_to(tools: Any, thinking: bool) -> None:
    question, made, *returned = with_calls(2)
    thought = {"role": "assistant", "content": "Hello!", "reasoning_content": "Hm."}
    for messages in ([SYSTEM, USER, thought, USER], [question, {**made, "reasoning_content": "Hm."}, *returned]):
        template = MODELS.get("deepseek-v4")().with_options({"enable_thinking": thinking})
        expected = published("deepseek-v4", messages, tools, thinking=thinking)
        assert template.render(messages, tools).removeprefix(INDEX["deepseek-v4"]["bos"]) == expected
