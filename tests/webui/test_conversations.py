"""Conversations as the browser keeps them and as files hold them, without a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from webui.conversation import Call, Outcome, Response, Turn
from webui.conversations import Conversation, conversation_of, imported
from webui.export import as_json, as_markdown, file_name
from webui.settings import Settings


def a_conversation() -> Conversation:
    responses = [
        Response("First", "Hm\nwell", [Call("look", '{"a": 1}', "c")], Outcome.COMPLETE, "", 3, 7, 5, 0.5, 1.0, 2.0),
        Response("Other", outcome=Outcome.FAILED, error="broke"),
    ]
    return Conversation("x", "", Settings(system_prompt="Be brief."), [Turn("What\nis it?", (), responses, 1)])


def test_a_conversation_comes_back_as_it_was_kept() -> None:
    chat = a_conversation()
    assert conversation_of(json.loads(json.dumps(chat.to_json()))) == chat


def test_a_file_is_read_as_a_conversation_of_its_own() -> None:
    chat = a_conversation()
    again = imported(as_json(chat))
    assert again.id != chat.id
    assert (again.turns, again.settings) == (chat.turns, chat.settings)


def test_messages_of_the_api_are_a_conversation() -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "image_url"}]
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": parts}]
    chat = imported(json.dumps({"messages": [*messages, {"role": "assistant", "content": "Yes"}]}))
    assert (chat.settings.system_prompt, chat.turns[0].question.strip(), chat.turns[0].response.text) == (
        "S",
        "Hi",
        "Yes",
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "{}", '{"turns": 5}', '{"turns": [5]}', "[" * 100_000])
def test_a_file_without_a_conversation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="This file"):
        imported(text)


def test_what_a_browser_reports_is_not_trusted() -> None:
    wild = {
        "id": 5,
        "turns": [{"question": [], "responses": [{"text": 1, "token_count": -1, "calls": [7]}], "shown": 1e9}],
    }
    turn = conversation_of(wild).turns[0]
    assert (turn.question, turn.response) == ("", Response(outcome=Outcome.STOPPED))


def test_a_browser_can_name_no_file_but_uploads(tmp_path: Path) -> None:
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    upload, secret = uploads / "a.png", tmp_path / "secret"
    upload.touch()
    secret.touch()
    (uploads / "link").symlink_to(secret)
    named = [str(upload), str(secret), f"{uploads}/../secret", f"{uploads}/link", f"{uploads}/gone", "\0", 5]
    reported = {"turns": [{"question": "?", "images": named}]}
    assert conversation_of(reported, uploads).turns[0].images == (str(upload),)
    assert conversation_of(reported).turns[0].images == ()


def test_a_response_whose_page_was_closed_was_stopped() -> None:
    kept = Conversation(turns=[Turn("Hi")]).to_json()
    assert conversation_of(kept).turns[0].response.outcome is Outcome.STOPPED


def test_a_document_has_questions_reasoning_calls_and_the_shown_response() -> None:
    chat = a_conversation()
    assert "*broke*" in as_markdown(chat)
    chat.turns[0].shown = 0
    text = as_markdown(chat)
    assert text.startswith(
        "# What is it?\n\n> System prompt: Be brief.\n\n## You\n\nWhat\nis it?\n\n## Model\n\n> Hm\n> well"
    )
    assert 'Calls `look`:\n\n```json\n{"a": 1}\n```' in text
    assert file_name(chat, "md") == "What-is-it.md"
    assert file_name(Conversation(name="../../\0"), "md") == "conversation.md"
