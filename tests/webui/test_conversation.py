"""The page's conversation, without a page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lmdeploy.serve.client import GenerateChunk, GenerateRequest, TritonUnavailable
from tests.support.waiting import eventually
from webui.conversation import Outcome, Settings, Turn, answer_last, to_messages
from webui.page import chat_view

SETTINGS = Settings(system_prompt="", temperature=0.0, top_p=1.0, max_new_tokens=8)


def chunk(text: str, count: int, finish_reason: str | None = None) -> GenerateChunk:
    return GenerateChunk(text, finish_reason=finish_reason, input_token_len=3, generate_token_len=count)


class Scripted:
    """Stands in for TritonClient: yields chunks, raises errors, and waits for ever at None."""

    def __init__(self, *steps: GenerateChunk | Exception | None) -> None:
        self.steps = steps
        self.left = False

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
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


async def test_answer_grows_and_counts_tokens() -> None:
    turns = [Turn("Hi")]
    await answer_last(Scripted(chunk("Hel", 1), chunk("", 2), chunk("lo", 3, "stop")), turns, SETTINGS)
    assert (turns[0].answer, turns[0].token_count, turns[0].outcome) == ("Hello", 3, Outcome.COMPLETE)


@pytest.mark.parametrize(
    ("reason", "ending"), [("stop", ""), ("length", "most tokens allowed"), ("cancelled", "stopped")]
)
async def test_summary_says_why_an_answer_ended_early(reason: str, ending: str) -> None:
    turns = [Turn("Hi")]
    await answer_last(Scripted(chunk("Hello", 1, reason)), turns, SETTINGS)
    assert turns[0].summary().startswith("1 token · ")
    assert turns[0].summary().endswith(ending)


async def test_cancelled_task_leaves_the_stream_and_keeps_the_text() -> None:
    turns, client = [Turn("Hi")], Scripted(chunk("Hel", 1), None)
    task = asyncio.create_task(answer_last(client, turns, SETTINGS))
    await eventually(lambda: turns[0].answer != "")
    task.cancel()
    await task
    assert client.left
    assert (turns[0].answer, turns[0].outcome) == ("Hel", Outcome.STOPPED)


async def test_error_midway_keeps_the_text_and_is_said() -> None:
    turns = [Turn("Hi")]
    await answer_last(Scripted(chunk("Hel", 1), TritonUnavailable("gone")), turns, SETTINGS)
    assert turns[0].outcome is Outcome.FAILED
    assert [message["content"] for message in chat_view(turns)][1] == "Hel"
    assert "server is away" in chat_view(turns)[2]["content"]


async def test_stream_without_an_end_is_a_failure() -> None:
    turns = [Turn("Hi")]
    await answer_last(Scripted(chunk("Hel", 1)), turns, SETTINGS)
    assert turns[0].outcome is Outcome.FAILED


def test_turns_without_an_answer_are_not_sent() -> None:
    turns = [Turn("one", answer="1"), Turn("two", outcome=Outcome.FAILED), Turn("three")]
    assert [message["content"] for message in to_messages("", turns)] == ["one", "1", "three"]


def test_blank_system_prompt_leaves_the_models_own() -> None:
    assert to_messages("  ", [Turn("x")]) == [{"role": "user", "content": "x"}]
    assert to_messages("Be brief.", [Turn("x")])[0] == {"role": "system", "content": "Be brief."}
