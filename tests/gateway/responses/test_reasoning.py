"""Reasoning is separate from the answer, whole and streamed, however the response is cut."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy.model import MODELS
from lmdeploy.templates.jinja import JinjaChatTemplate
from lmdeploy.templates.thinking import (
    COHERE,
    ERNIE45,
    GEMMA4,
    GRANITE,
    HARMONY,
    HUNYUAN,
    MAGISTRAL,
    SEED_OSS,
    THINK,
    ThinkingTags,
    thinking_of,
)
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.checkpoint_files import copy_texts
from openai_gateway.protocol.fields import thinking_options
from openai_gateway.reasoning import InlineReasoning, ReasoningDelta, ReasoningParser
from openai_gateway.tools.events import Call
from tests.support.fake_triton import FakeTriton, Script
from tests.support.published_templates import INDEX
from tests.support.tool_calls import Found, parse

# As Qwen3's: thinking is on unless it is switched off, and then found done. With `always` prompts end with the mark.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% elif always %}<think>\n{% endif %}{% endif %}"
)
MESSAGES: Any = [{"role": "user", "content": "2 + 2?"}]
THOUGHT = ("<thi", "nk>\nTwo ", "and two", ".\n</", "think>\n\n", "Four", ".")


@pytest.fixture(scope="module")
def engine_dir(engine_dir: Path, default_model_dir: Path) -> Path:
    """Of a model that marks its reasoning."""
    copy_texts(default_model_dir, engine_dir)
    (engine_dir / "chat_template.jinja").write_text(TEMPLATE)
    return engine_dir


def streamed(client: openai.OpenAI, **more: Any) -> tuple[str, str, list[Any]]:
    reasoning = content = ""
    events = list(client.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True, **more))
    for event in events:
        delta = event.choices[0].delta
        reasoning += getattr(delta, "reasoning_content", None) or ""
        content += delta.content or ""
    return reasoning, content, events


def test_the_tokens_of_reasoning_and_of_the_cache_are_counted(client: openai.OpenAI, triton: FakeTriton) -> None:
    # Two tokens a text; the reasoning ends within the fifth.
    triton.script = Script(texts=THOUGHT, input_token_len=7, cached_token_len=4)
    requested: Any = {"model": "fake-model", "messages": MESSAGES}
    usage: Any = client.chat.completions.create(**requested).usage
    more: Any = {"stream": True, "stream_options": {"include_usage": True}}
    reported: Any = list(client.chat.completions.create(**requested, **more))[-1].usage
    response: Any = client.responses.create(model="fake-model", input="2 + 2?").usage
    assert usage == reported
    assert usage.completion_tokens == response.output_tokens == 14
    assert usage.completion_tokens_details.reasoning_tokens == response.output_tokens_details.reasoning_tokens == 10
    assert usage.prompt_tokens_details.cached_tokens == response.input_tokens_details.cached_tokens == 4
    triton.script = Script(texts=("Four.",))
    without_reasoning: Any = client.chat.completions.create(**requested).usage
    assert (
        without_reasoning.completion_tokens_details.reasoning_tokens,
        without_reasoning.prompt_tokens_details.cached_tokens,
    ) == (0, 0)
    triton.script = Script(texts=("<think>Tw", "o", " and"), finish_reason="length")
    cut: Any = client.chat.completions.create(**requested).usage
    assert cut.completion_tokens_details.reasoning_tokens == cut.completion_tokens == 6


def test_a_response_without_reasoning_is_as_it_is(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=(" Four", " < five."))
    message = client.chat.completions.create(model="fake-model", messages=MESSAGES).choices[0].message
    assert message.content == " Four < five."
    assert "reasoning_content" not in message.model_dump(exclude_none=True)
    assert streamed(client)[:2] == ("", " Four < five.")


def test_where_the_prompt_opens_the_reasoning_the_response_begins_with_them(
    client: openai.OpenAI, triton: FakeTriton
) -> None:
    triton.script = Script(texts=("Two.", "</think>", "Four."))
    always: Any = {"chat_template_kwargs": {"always": True}}
    assert streamed(client, extra_body=always)[:2] == ("Two.", "Four.")
    off = {"chat_template_kwargs": {"always": True, "enable_thinking": False}}
    assert streamed(client, extra_body=off)[:2] == ("", "Two.</think>Four.")


def test_options_reach_the_template_with_the_conversation(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=("Four.",))
    more = {"enable_thinking": False, "reasoning_effort": "low", "chat_template_kwargs": {"colour": "red"}}
    client.chat.completions.create(model="fake-model", messages=MESSAGES, extra_body=more)
    sent = json.loads(triton.requests[-1].inputs["messages"])
    options = {"enable_thinking": False, "thinking": False, "reasoning_effort": "low", "colour": "red"}
    assert sent == {"messages": MESSAGES, "chat_template_kwargs": options}
    client.chat.completions.create(model="fake-model", messages=MESSAGES)
    assert json.loads(triton.requests[-1].inputs["messages"]) == MESSAGES


def test_reasoning_of_earlier_responses_reach_the_template(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=("Four.",))
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "4", "reasoning_content": "Two."}, *MESSAGES]
    client.chat.completions.create(model="fake-model", messages=messages)
    assert json.loads(triton.requests[-1].inputs["messages"])[1]["reasoning_content"] == "Two."


def test_who_does_not_want_reasoning_gets_the_response_alone(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=THOUGHT)
    hidden = {"include_reasoning": False}
    message: Any = client.chat.completions.create(model="fake-model", messages=MESSAGES, extra_body=hidden)
    assert message.choices[0].message.content == "Four."
    assert "reasoning_content" not in message.choices[0].message.model_dump(exclude_none=True)
    assert streamed(client, extra_body=hidden)[:2] == ("", "Four.")


def test_a_call_in_harmony_is_found_after_its_reasoning() -> None:
    response = (
        "<|channel|>analysis<|message|>Add.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
        '<|constrain|>json<|message|>{"a": 2}'
    )
    thinking = thinking_of("auto", JinjaChatTemplate(INDEX["gpt-oss"]["template"]))
    reported = ReasoningParser(thinking.tags, begins_inside=False).whole(response)
    assert reported.reasoning == "Add."
    assert parse(reported.content, frozenset({"add"})) == Found("", [Call("add", '{"a": 2}')])


@pytest.mark.parametrize("always", [False, True])
def test_a_response_format_holds_what_comes_after_reasoning(
    client: openai.OpenAI, triton: FakeTriton, always: bool
) -> None:
    triton.script = Script(texts=(("" if always else "<think>") + "Hm.</think>\n\n", '{"a": 1}'))
    options: Any = {"chat_template_kwargs": {"always": always}}
    form: Any = {"type": "json_object"}
    assert streamed(client, response_format=form, extra_body=options)[:2] == ("Hm.", '{"a": 1}')
    opening, content = json.loads(triton.requests[-1].inputs["response_format"])["structural_tag"]["elements"]
    assert content["json_schema"] == {"type": "object"}
    reasoning = (opening if always else opening["content"])["elements"][0]
    assert (reasoning["begin"], reasoning["end"]) == ("" if always else "<think>", "</think>")
    assert (opening["type"] == "optional") != always


@pytest.mark.parametrize("always", [False, True])
def test_a_budget_reaches_the_engine_with_what_ends_reasoning(
    client: openai.OpenAI, triton: FakeTriton, default_model_dir: Path, always: bool
) -> None:
    triton.script = Script(texts=THOUGHT[1:] if always else THOUGHT)
    tool: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
    extra = {"thinking_budget": 40, "chat_template_kwargs": {"always": always}}
    client.chat.completions.create(model="fake-model", messages=MESSAGES, extra_body=extra)
    inputs = triton.requests[0].inputs
    assert (inputs["thinking_budget"], inputs["thinking_end"]) == (40, "</think>")
    assert inputs.get("thinking_begin") == (None if always else "<think>")
    assert Tokenizer(str(default_model_dir)).decode(inputs["thinking_end_ids"]) == "\n</think>\n\n"
    client.chat.completions.create(model="fake-model", messages=MESSAGES, extra_body=extra, tools=[tool])
    assert '"max_tokens":40' in triton.requests[1].inputs["response_format"].replace(" ", "")  # the grammar ends it
    client.chat.completions.create(
        model="fake-model",
        messages=MESSAGES,
        extra_body=extra | {"thinking_budget": None, "repetition_detection": "off"},
    )
    assert not any(name.startswith("thinking") for request in triton.requests[1:] for name in request.inputs)
    client.chat.completions.create(model="fake-model", messages=MESSAGES, extra_body=extra | {"thinking_budget": None})
    tags = {name: value for name, value in inputs.items() if name.startswith("thinking") and name != "thinking_budget"}
    assert {name: triton.requests[3].inputs[name] for name in tags} == tags  # for repetitions
    assert "thinking_budget" not in triton.requests[3].inputs


def test_a_budget_is_refused_where_nobody_knows_how_reasoning_ends(asking_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="leave thinking_budget out"):
        asking_client.chat.completions.create(model="fake-model", messages=MESSAGES, extra_body={"thinking_budget": 4})


def test_responses_have_reasoning_as_an_item_of_their_own(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=THOUGHT)
    requested: Any = {"model": "fake-model", "input": "2 + 2?", "reasoning": {"effort": "low"}}
    reasoning, message = client.responses.create(**requested).output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or ()] == ["Two and two."]
    assert message.type == "message"
    with client.responses.stream(**requested) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == "Two and two."
    assert [event.text for event in events if event.type == "response.reasoning_text.done"] == ["Two and two."]
    assert final.output_text == "Four."
    sent = json.loads(triton.requests[-1].inputs["messages"])
    assert sent["chat_template_kwargs"] == {"reasoning_effort": "low"}


def test_reasoning_of_an_earlier_response_are_those_of_its_message(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=THOUGHT)
    first = client.responses.create(model="fake-model", input="2 + 2?")
    messages: Any = [*MESSAGES, *(item.model_dump(exclude_none=True) for item in first.output), *MESSAGES]
    client.responses.create(model="fake-model", input=messages)
    answered = {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}
    assert json.loads(triton.requests[-1].inputs["messages"]) == [*MESSAGES, answered, *MESSAGES]


MARKED = [
    (THINK, False, "<think>\na b\n</think>\n\nc <think> d", ReasoningDelta("a b", "c <think> d")),
    (THINK, True, "a b\n</think>c", ReasoningDelta("a b", "c")),
    (THINK, True, "<think>a</think>c", ReasoningDelta("a", "c")),
    (THINK, True, "cut off", ReasoningDelta("cut off", "")),
    (THINK, False, "no reasoning </think>", ReasoningDelta("", "no reasoning </think>")),
    (THINK, False, "<think></think>\n\nc", ReasoningDelta("", "c")),
    (THINK, False, "<thi", ReasoningDelta("", "<thi")),
    (MAGISTRAL, False, "[THINK]a[/THINK]c", ReasoningDelta("a", "c")),
    (GRANITE, False, "Here is my thought process: a. Here is my response: c", ReasoningDelta("a.", "c")),
    (
        HARMONY,
        False,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>c",
        ReasoningDelta("a", "c"),
    ),
    (HARMONY, False, "<|channel|>final<|message|>c", ReasoningDelta("", "c")),
    (GEMMA4, False, "<|channel>thought\na\n<channel|>c", ReasoningDelta("a", "c")),
    (GEMMA4, False, "<|channel>thought\n<channel|>c", ReasoningDelta("", "c")),
    (GEMMA4, True, "a\n<channel|>c", ReasoningDelta("a", "c")),
    (SEED_OSS, False, "<seed:think>a</seed:think>c", ReasoningDelta("a", "c")),
    (HUNYUAN, False, "<think>\na\n</think>\n<answer>\nc d\n</answer>", ReasoningDelta("a", "\nc d")),
    (HUNYUAN, False, "<answer>c</answer> ", ReasoningDelta("", "c")),
    (HUNYUAN, False, "c </answ \n", ReasoningDelta("", "c </answ \n")),
    (ERNIE45, True, "a\n</think>\n\n<response>\nc\n</response>\n", ReasoningDelta("a", "\nc")),
    (COHERE, False, "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>c<|END_RESPONSE|>", ReasoningDelta("a", "c")),
]


@pytest.mark.parametrize(("tags", "begins_inside", "text", "expected"), MARKED)
def test_parts_are_those_of_the_whole_wherever_it_is_cut(
    tags: ThinkingTags, begins_inside: bool, text: str, expected: ReasoningDelta
) -> None:
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            parser = ReasoningParser(tags, begins_inside=begins_inside)
            reported = [*map(parser.feed, (text[:first], text[first:second], text[second:])), parser.finish()]
            assert (
                "".join(part.reasoning for part in reported),
                "".join(part.content for part in reported),
            ) == expected


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "a", " ", "\n"])), st.booleans())
def test_nothing_but_marks_and_blanks_around_them_is_lost(pieces: list[str], begins_inside: bool) -> None:
    parser = ReasoningParser(THINK, begins_inside=begins_inside)
    reported = [*map(parser.feed, pieces), parser.finish()]
    whole = ReasoningParser(THINK, begins_inside=begins_inside).whole("".join(pieces))
    assert whole == ("".join(part.reasoning for part in reported), "".join(part.content for part in reported))
    assert (whole.reasoning + whole.content).count("a") == pieces.count("a")


def test_marks_are_those_that_the_template_knows() -> None:
    assert thinking_of("auto", JinjaChatTemplate(TEMPLATE)).tags is THINK  # type: ignore[union-attr]
    assert thinking_of("auto", JinjaChatTemplate("{{ messages }}<|end|>")) is None
    assert thinking_of("auto", MODELS.get("qwen3")()).tags is THINK  # type: ignore[union-attr]
    assert thinking_of("auto", MODELS.get("qwen2d5")()) is None
    assert thinking_of("auto", None) is None
    assert thinking_of("none", JinjaChatTemplate(TEMPLATE)) is None
    named = thinking_of("deepseek-r1", None)
    assert (named.tags, named.begins_inside({}), named.begins_inside({"enable_thinking": False})) == (
        THINK,
        True,
        False,
    )
    with pytest.raises(ValueError, match="must be one of auto, none, cohere_command3"):
        thinking_of("poem", None)


def test_built_in_qwen3_finds_its_reasoning_done_where_they_are_not_wanted() -> None:
    template = MODELS.get("qwen3")()
    prompt = template.render(MESSAGES)
    assert template.with_options({"enable_thinking": True}).render(MESSAGES) == prompt
    assert template.with_options({"enable_thinking": False}).render(MESSAGES) == prompt + "<think>\n\n</think>\n\n"
    assert template.render(MESSAGES) == prompt


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_options_do_not_take_the_place_of_what_the_template_reads(name: str) -> None:
    with pytest.raises(ValueError, match=f"chat_template_kwargs must not set {name}"):
        JinjaChatTemplate(TEMPLATE, {"bos_token": "<s>"}).with_options({name: "x"})


# published template -> its marks; whether a prompt ends within them as it is, with thinking on, off; after a result
PUBLISHED = {
    "deepseek_v31": (THINK, False, True, False, False),
    "deepseek_v32": (THINK, False, True, False, False),
    "gemma4": (GEMMA4, False, False, False, False),
    "glm45": (THINK, False, False, False, False),
    "glm47": (THINK, True, True, False, True),
    "minimax_m2": (THINK, True, True, True, True),
    "ministral3": (MAGISTRAL, False, False, False, False),
    "qwen3": (THINK, False, False, False, False),
    "qwen3_5": (THINK, True, True, False, True),
    "seed_oss": (SEED_OSS, False, False, False, False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_where_reasoning_begins_is_known_by_the_published_template(name: str) -> None:
    entry = INDEX[name]
    template = JinjaChatTemplate(
        INDEX[name]["template"],
        {key: text for key, text in (("bos_token", entry["bos"]), ("eos_token", entry["eos"])) if text},
    )
    thinking = thinking_of("auto", template)
    found = [thinking.begins_inside(thinking_options(None, option)) for option in (None, True, False)]
    assert (thinking.tags, *found, thinking.begins_inside({}, after_tool=True)) == PUBLISHED[name]


def test_gemma_4_goes_on_to_think_after_what_a_tool_returned() -> None:
    thinking = thinking_of("auto", JinjaChatTemplate(INDEX["gemma4"]["template"]))
    assert thinking.begins_inside({"enable_thinking": True}, after_tool=True)


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_minimax_s_reasoning_stays_in_the_content_where_its_parser_says_so(cut: int) -> None:
    """As vLLM's parser of this name does: the opening mark that the prompt ended with comes first."""
    thinking = thinking_of("minimax_m2_append_think", None)
    assert thinking.in_content
    for text in ("Two and two.\n</think>\n\nFour.", "Four", ""):
        parser = InlineReasoning(thinking.tags, begins_inside=thinking.begins_inside({}))
        pieces = [parser.feed(text[start : start + cut]) for start in range(0, len(text), cut)]
        pieces.append(parser.finish())
        assert "".join(piece.reasoning for piece in pieces) == ""
        assert "".join(piece.content for piece in pieces) == f"<think>{text}"
