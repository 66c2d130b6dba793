"""Conversations of the page, without a page: turns, reasoning, what browsers keep, and sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from webui.conversation import Call, Outcome, Piece, Response, Turn, to_messages
from webui.conversations import Conversation, conversation_of, imported
from webui.export import as_json, as_markdown, file_name
from webui.generating import generate_last
from webui.guard import sessions as module
from webui.guard.sessions import Sessions, SessionsFull
from webui.openai_client import HttpError, ServerUnavailable
from webui.settings import Settings
from webui.view import chat_view, turn_at

SETTINGS = Settings(temperature=0.0, top_p=1.0, max_new_tokens=8)


def piece(text: str, count: int, finish_reason: str | None = None) -> Piece:
    return Piece(text, finish_reason=finish_reason, prompt_count=3, token_count=count)


class Scripted:
    """Stands in for a server: yields pieces, raises errors, and waits forever at None."""

    def __init__(self, *steps: Piece | Exception | None) -> None:
        self.steps = steps
        self.left = False

    def context_size(self, model: str) -> int | None:
        return 8

    async def respond(self, messages: Sequence[dict[str, Any]], settings: Settings) -> AsyncIterator[Piece]:
        try:
            for step in self.steps:
                if step is None:
                    await asyncio.Event().wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
        finally:
            self.left = True


async def answered(*steps: Piece | Exception | None) -> Response:
    turn = Turn("Hi")
    await generate_last(Scripted(*steps), [turn], SETTINGS)
    return turn.response


@pytest.mark.parametrize(
    ("reason", "ending"),
    [("stop", "context 50% of 8"), ("length", "stopped at the token limit"), ("cancelled", "stopped")],
)
async def test_metrics_say_why_a_response_ended_early(reason: str, ending: str) -> None:
    metrics = (await answered(piece("Hello", 1, reason))).metrics()
    assert metrics[0] == "1 token"
    assert metrics[-1].endswith(ending)


async def test_error_midway_keeps_the_text_and_is_said() -> None:
    turns = [Turn("Hi")]
    await generate_last(Scripted(piece("Hel", 1), ServerUnavailable("gone")), turns, SETTINGS)
    assert turns[0].response.outcome is Outcome.FAILED
    assert [message["content"] for message in chat_view(turns)][1] == "Hel"
    assert "server is away" in turns[0].response.error


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (400, "The model server refused this: too long"),
        (401, "The model server wants an API key (--api-key of the page): too long"),
        (500, "The model server failed: too long"),
    ],
)
async def test_a_refusal_is_said_in_plain_words(status: int, shown: str) -> None:
    assert (await answered(HttpError(status, "too long"))).error == shown


async def test_stream_without_an_end_is_a_failure() -> None:
    assert (await answered(piece("Hel", 1))).outcome is Outcome.FAILED


async def test_reasoning_and_calls_are_separate_from_the_response() -> None:
    parts = [Piece(reasoning="Let me "), Piece(reasoning="look."), Piece(calls={0: Call("find", "{", "c1")})]
    response = await answered(*parts, Piece(calls={0: Call("", "}"), 1: Call("ask", "{}", "c2")}, finish_reason="stop"))
    assert (response.reasoning, response.calls) == ("Let me look.", [Call("find", "{}", "c1"), Call("ask", "{}", "c2")])
    assert response.thought > 0


def turn(question: str, text: str) -> Turn:
    return Turn(question, responses=[Response(text, outcome=Outcome.COMPLETE, token_count=1)])


def test_turns_without_a_response_are_not_sent() -> None:
    turns = [turn("one", "1"), Turn("two", responses=[Response(outcome=Outcome.FAILED)]), Turn("three")]
    assert [message["content"] for message in to_messages("", turns)] == ["one", "1", "three"]


def test_another_response_stands_alongside_the_first_and_the_shown_one_is_sent() -> None:
    turns = [turn("one", "1"), Turn("two")]
    turns[0].regenerate()
    turns[0].response.text = "uno"
    assert to_messages("", turns)[1]["content"] == "uno"
    turns[0].show(-1)
    assert to_messages("", turns)[1]["content"] == "1"
    turns[0].show(-1)
    assert turns[0].shown == 0


def test_every_message_that_is_shown_belongs_to_its_turn() -> None:
    turns = [turn("one", "1"), turn("two", "2")]
    turns[1].response.reasoning = "hm"
    found = [turn_at(turns, index) for index in range(len(chat_view(turns)))]
    assert found == [0] * 3 + [1] * 4


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


MIB = 2**20


class Kept:
    """Sessions that are kept, and those that were forgotten."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.evicted: list[str] = []
        self.sessions = Sessions(lambda name: self.sizes.get(name, 0), self.evicted.append)

    def event(self, name: str, size: int = 1, event: int = 0) -> None:
        with self.sessions.request(name, event, size):
            assert name in self.sessions


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_the_oldest_sessions_without_a_page_are_forgotten(kept: Kept) -> None:
    with kept.sessions.page("open"):
        for number in range(module.MAX_ORPHANED + 2):
            kept.event(str(number))
        kept.event("2")
        kept.event("new")
        assert kept.evicted == ["0", "1", "3"]
        assert "open" in kept.sessions
    kept.event("other")
    assert kept.evicted == ["0", "1", "3", "4", "5"]


def test_long_bodies_leave_room_for_fewer_sessions(kept: Kept) -> None:
    for name in "abc":
        kept.event(name, 7 * MIB)
    assert kept.evicted == ["a"]
    kept.event("b", MIB)  # the last body of an event is what is kept of it
    kept.event("d", 7 * MIB)
    assert kept.evicted == ["a"]


def test_a_conversation_counts_as_what_it_has_grown_to(kept: Kept) -> None:
    kept.event("a")
    kept.sizes["b"] = module.MAX_ORPHANED_BYTES - 1
    kept.event("b")
    assert kept.evicted == ["a"]


def test_a_session_takes_no_more_than_its_part(kept: Kept) -> None:
    with kept.sessions.page("a"):
        for event in range(4):
            kept.event("a", 8 * MIB, event)
        with pytest.raises(SessionsFull):
            kept.event("a", 8 * MIB, 4)
        kept.event("a", 8 * MIB, 3)


def test_open_sessions_that_take_all_leave_small_ones_their_place(kept: Kept) -> None:
    with ExitStack() as stack:
        for number in range(8):
            stack.enter_context(kept.sessions.page(str(number)))
            for event in range(4):
                kept.event(str(number), 8 * MIB, event)
        with pytest.raises(SessionsFull):
            kept.event("late", MIB)
        kept.event("late", 100_000)
    assert kept.evicted
    kept.event("late", MIB)


def test_this_many_pages_may_be_open(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGES", 2)
    with kept.sessions.page("a"), kept.sessions.page("b"):
        with pytest.raises(SessionsFull), kept.sessions.page("c"):
            pass
        kept.event("c")
    with kept.sessions.page("c"):
        pass
