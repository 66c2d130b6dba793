"""Conversations as clients send them, in the turns that published templates take; and responses that were begun."""

from typing import Any

import pytest

from lmdeploy.model import MODELS
from lmdeploy.templates.jinja import JinjaChatTemplate
from tests.support.published_templates import INDEX, published_tokenizer, stop_clocks

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}
REMINDER = {"role": "system", "content": "It is Monday."}
REPLY = {"role": "assistant", "content": "Ann."}
CALL = {"id": "a23456789", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "7", "tool_call_id": "a23456789", "name": "f"}
# Templates that write nothing of the system prompt, or write it before the user's last words.
LOSING = ("chatglm", "baichuan2", "mistral-v3", "mistral-nemo")


def template(name: str) -> JinjaChatTemplate:
    text = INDEX[name]["template"]
    return JinjaChatTemplate(text, {"bos_token": INDEX[name]["bos"], "eos_token": INDEX[name]["eos"]})


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, USER, REMINDER],
        [SYSTEM, USER, REMINDER, REPLY, {"role": "user", "content": "And where?"}],
        [USER, {"role": "user", "content": "Today."}],
        [
            SYSTEM,
            REMINDER,
            USER,
            REPLY,
            {"role": "assistant", "content": "Or Bob."},
            {"role": "user", "content": "Sure?"},
        ],
    ],
    ids=["reminder last", "reminder within", "user twice", "assistant twice"],
)
def test_all_is_written_in_the_order_in_which_it_was_said(messages: list[dict[str, Any]]) -> None:
    begins = next(index for index, message in enumerate(messages) if message["role"] != "system")
    for name in INDEX:
        prompt = template(name).render(messages)
        texts = [str(message["content"]) for message in messages[begins if name in LOSING else 0 :]]
        offsets = [prompt.find(text) for text in texts]
        assert -1 not in offsets, name
        assert offsets == sorted(offsets), name


@pytest.mark.parametrize("name", ["mistral-v3", "mistral-nemo", "gemma3", "llama3_1", "qwen2d5"])
def test_what_the_user_says_after_a_result_is_not_refused(name: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    after = {"role": "user", "content": "Quick!"}
    prompt = template(name).render([SYSTEM, USER, CALLING, RESULT, REMINDER, after], [tool])
    assert prompt.index("It is Monday.") < prompt.index("Quick!")


def test_where_turns_are_free_nothing_is_joined() -> None:
    messages = [SYSTEM, USER, REMINDER, REPLY, USER]
    assert template("qwen2d5").render(messages).count("<|im_start|>") == len(messages) + 1


@pytest.mark.parametrize("name", [name for name in INDEX if name not in ("mixtral", "gemma")])
def test_a_response_that_was_begun_goes_on_as_transformers_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch)
    messages = [SYSTEM, USER, {"role": "assistant", "content": "It is Ann, who"}]
    expected = published_tokenizer(name).apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert template(name).render(messages, continue_final_message=True) == expected
    assert str(expected).endswith("It is Ann, who")


@pytest.mark.parametrize("name", ["internlm2", "llama3_1", "mistral", "gemma", "vicuna"])
def test_built_in_templates_continue_a_response_too(name: str) -> None:
    begun = [USER, {"role": "assistant", "content": "It is Ann, who"}]
    prompt = MODELS.get(name)().render(begun, continue_final_message=True)
    opened = MODELS.get(name)().render(begun[:1])
    assert prompt in (f"{opened}It is Ann, who", f"{opened} It is Ann, who")


@pytest.mark.parametrize("last", [USER, CALLING, {"role": "assistant", "content": ""}])
def test_only_what_the_assistant_began_goes_on(last: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be the assistant's, with content and without calls"):
        template("qwen2d5").render([USER, REPLY, USER, last], continue_final_message=True)
