"""The page's conversation, without a page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from lmdeploy.serve.client import TritonRequestError, TritonUnavailable
from tests.support.fake_triton import FakeTriton
from tests.support.waiting import eventually
from webui.conversation import Call, Outcome, Piece, Response, Turn, to_messages
from webui.generating import generate_last
from webui.settings import Settings
from webui.triton import TritonServer
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


async def test_response_grows_and_counts_tokens() -> None:
    response = await answered(piece("Hel", 1), piece("", 2), piece("lo", 3, "stop"))
    assert (response.text, response.token_count, response.outcome) == ("Hello", 3, Outcome.COMPLETE)


@pytest.mark.parametrize(
    ("reason", "ending"),
    [("stop", "context 50% of 8"), ("length", "stopped at the token limit"), ("cancelled", "stopped")],
)
async def test_metrics_say_why_a_response_ended_early(reason: str, ending: str) -> None:
    metrics = (await answered(piece("Hello", 1, reason))).metrics()
    assert metrics[0] == "1 token"
    assert metrics[-1].endswith(ending)


async def test_cancelled_task_leaves_the_stream_and_keeps_the_text() -> None:
    turns, client = [Turn("Hi")], Scripted(piece("Hel", 1), None)
    task = asyncio.create_task(generate_last(client, turns, SETTINGS))
    await eventually(lambda: turns[0].response.text != "")
    task.cancel()
    await task
    assert client.left
    assert (turns[0].response.text, turns[0].response.outcome) == ("Hel", Outcome.STOPPED)


async def test_error_midway_keeps_the_text_and_is_said() -> None:
    turns = [Turn("Hi")]
    await generate_last(Scripted(piece("Hel", 1), TritonUnavailable("gone")), turns, SETTINGS)
    assert turns[0].response.outcome is Outcome.FAILED
    assert [message["content"] for message in chat_view(turns)][1] == "Hel"
    assert "server is away" in turns[0].response.error


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("400", "The model server refused this: too long"),
        ("INVALID_ARGUMENT", "The model server refused this: too long"),
        ("401", "The model server wants an API key (--api-key of the page): too long"),
        ("500", "The model server failed: too long"),
    ],
)
async def test_a_refusal_is_said_in_plain_words(code: str, shown: str) -> None:
    assert (await answered(TritonRequestError(code, "too long"))).error == shown


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


def test_what_is_said_after_a_call_is_its_result() -> None:
    turn = Turn("Weather?", responses=[Response(calls=[Call("look", '{"a": 1}', "c1")], outcome=Outcome.COMPLETE)])
    _, call, result = to_messages("", [turn, Turn("Sunny")])
    assert call["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a": 1}'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "Sunny"}


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


async def test_triton_itself_is_reported_the_tokens_of_responses_and_says_what_it_cannot_do(
    fake_triton: FakeTriton,
) -> None:
    server = TritonServer(fake_triton.address)
    turns = [Turn("one")]
    await generate_last(server, turns, SETTINGS)
    turns.append(Turn("two"))
    await generate_last(server, turns, SETTINGS)
    message = json.loads(fake_triton.requests[-1].inputs["messages"])[1]
    assert message == {"role": "assistant", "content": turns[0].response.text, "token_ids": turns[0].response.token_ids}
    assert message["token_ids"]
    for settings in (Settings(tools="[]"), Settings(thinking_budget=9)):
        turn = Turn("three")
        await generate_last(server, [turn], settings)
        assert turn.response.outcome is Outcome.FAILED
        assert turn.response.error.endswith("a server with OpenAI's API, and this page asks Triton itself.")
    assert len(fake_triton.requests) == 2
    await server.close()
