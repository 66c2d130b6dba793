"""The offline API under asyncio and threads, and its sessions: a session's turn is its whole conversation's."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, Response, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.turbomind.engine import EngineOutput
from tests.support.both_engines import config_for
from tests.support.waiting import eventually, eventually_sync

QUESTION = "What is the capital of France?"
NEXT = "And of Italy?"
SHORT = GenerationConfig(max_new_tokens=12)
CUT_OFF = GenerationConfig(max_new_tokens=4)
ENDLESS = GenerationConfig(max_new_tokens=400, ignore_eos=True)


# Both engines are alike here: another runner computes the steps.
@pytest.fixture(scope="module", params=["turbomind", pytest.param("pytorch", marks=pytest.mark.thorough)])
def pipe(request: pytest.FixtureRequest, default_model_dir: Path) -> Iterator[AsyncEngine]:
    config = config_for(request.param, dtype="float32", session_len=512, cache_max_entry_count=128)
    with pipeline(str(default_model_dir), backend_config=config) as loaded:
        yield loaded


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def whole(pipe: AsyncEngine, *args: Any, **kwargs: Any) -> Response:
    """Return the only response of a turn that is not streamed."""
    [response] = [response async for response in pipe.generate(*args, stream_response=False, **kwargs)]
    return response


def same_response(turn: Response, reference: Response) -> bool:
    """Return whether a turn saw as many tokens as the whole conversation, and answered the same."""
    seen = turn.history_token_len + turn.input_token_len
    return (seen, turn.token_ids, turn.text) == (reference.input_token_len, reference.token_ids, reference.text)


async def test_threads_and_event_loops_share_one_engine(pipe: AsyncEngine) -> None:
    questions = [f"Name {count} animals." for count in range(1, 4)]
    expected = [response.text for response in pipe(questions, CUT_OFF)]
    barrier = threading.Barrier(3)

    def in_a_thread(_: int) -> list[str]:
        barrier.wait(180)
        return [response.text for response in pipe(questions, CUT_OFF)]

    def in_a_loop_of_its_own(_: int) -> list[str]:
        barrier.wait(180)
        return [response.text for response in asyncio.run(pipe.async_batch_infer(questions, CUT_OFF))]

    with ThreadPoolExecutor(3) as threads:
        loop = asyncio.get_running_loop()
        others = [loop.run_in_executor(threads, work, 0) for work in (in_a_thread, in_a_thread, in_a_loop_of_its_own)]
        here = [pipe.async_batch_infer(question, CUT_OFF) for question in questions]
        sessions = [whole(pipe, question, 100 + i, CUT_OFF) for i, question in enumerate(questions)]
        (*responses,) = await asyncio.gather(*others, asyncio.gather(*here), asyncio.gather(*sessions))
    assert responses[:3] == [expected] * 3
    assert [[response.text for response in reply] for reply in responses[3:]] == [expected] * 2


async def test_the_event_loop_goes_on_while_a_response_is_made(
    pipe: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, submit = asyncio.get_running_loop(), pipe.engine.submit
    went_on: list[bool] = []

    def submit_blocked(ids: Any, config: Any, on_output: Any, **more: Any) -> int:
        def take(output: EngineOutput) -> None:  # no token comes before the loop has gone on
            tick = threading.Event()
            loop.call_soon_threadsafe(tick.set)
            went_on.append(tick.wait(20))
            on_output(output)

        return submit(ids, config, take, **more)

    monkeypatch.setattr(pipe.engine, "submit", submit_blocked)
    await pipe.async_batch_infer("Tell me a story.", CUT_OFF)
    assert went_on
    assert all(went_on)


async def test_a_cancelled_task_frees_its_blocks(pipe: AsyncEngine) -> None:
    before = pipe.engine.metrics()["requests_cancelled_total"]
    task = asyncio.create_task(pipe.async_batch_infer(["Tell me a story.", QUESTION], ENDLESS))
    await eventually(lambda: pipe.engine.metrics()["requests_running"] == 2)
    task.cancel()
    await eventually(lambda: pipe.engine.metrics()["requests_running"] == 0)
    assert pipe.engine.metrics()["requests_cancelled_total"] == before + 2


@pytest.mark.parametrize("first", [SHORT, CUT_OFF], ids=["ended by the model", "cut off"])
async def test_a_session_s_turn_is_the_whole_conversation_s(pipe: AsyncEngine, first: GenerationConfig) -> None:
    system = {"role": "system", "content": "Answer briefly."}
    begun = await whole(pipe, [system, user(QUESTION)], 1, first, sequence_end=False)
    turn = await whole(pipe, [user(NEXT)], 1, SHORT, sequence_start=False)
    conversation = [system, user(QUESTION), assistant(begun.text), user(NEXT)]
    assert same_response(turn, pipe(conversation, SHORT))
    assert begun.history_token_len == 0


async def test_a_session_begun_again_has_forgotten_the_old_one(pipe: AsyncEngine) -> None:
    await whole(pipe, "Remember the number 42.", 2, CUT_OFF, sequence_end=False)
    again = await whole(pipe, QUESTION, 2, CUT_OFF, sequence_end=False)
    assert same_response(again, pipe(QUESTION, CUT_OFF))
    await pipe.end_session(2)


async def test_step_rolls_a_session_back(pipe: AsyncEngine) -> None:
    begun = await whole(pipe, QUESTION, 3, CUT_OFF, sequence_end=False)
    first = await whole(pipe, "And of Spain?", 3, CUT_OFF, sequence_start=False, sequence_end=False)
    instead = await whole(pipe, NEXT, 3, CUT_OFF, sequence_start=False, step=first.history_token_len)
    assert same_response(instead, pipe([user(QUESTION), assistant(begun.text), user(NEXT)], CUT_OFF))


async def test_finished_texts_and_token_ids_go_on_where_the_session_ends(pipe: AsyncEngine) -> None:
    text, more = "Once upon a time", ", in a land far away,"
    await whole(pipe, text, 4, GenerationConfig(max_new_tokens=1), do_preprocess=False, sequence_end=False)
    length = len(pipe.tokenizer.encode(text))
    turn = await whole(
        pipe, more, 4, CUT_OFF, do_preprocess=False, sequence_start=False, step=length, sequence_end=False
    )
    assert same_response(turn, pipe(text + more, CUT_OFF, do_preprocess=False))
    ids = pipe.tokenizer.encode(more)
    again = await whole(pipe, "", 4, CUT_OFF, input_ids=ids, sequence_start=False, step=length)
    assert again.token_ids == turn.token_ids


async def test_a_stopped_session_keeps_what_it_has(pipe: AsyncEngine) -> None:
    pieces = []
    async for piece in pipe.generate("Tell me a story.", 5, ENDLESS, sequence_end=False):
        pieces.append(piece)
        if len(pieces) == 5:
            await pipe.stop_session(5)
    assert pieces[-1].finish_reason == "cancelled"
    assert 5 <= pieces[-1].generate_token_len < 400
    turn = await whole(pipe, "Go on.", 5, CUT_OFF, sequence_start=False)
    assert turn.history_token_len >= pieces[-1].input_token_len + 5


async def test_leaving_a_session_s_response_early_stops_it(pipe: AsyncEngine) -> None:
    response = pipe.generate("Tell me a story.", 6, ENDLESS, sequence_end=False)
    await anext(response)
    await response.aclose()
    turn = await whole(pipe, "Go on.", 6, CUT_OFF, sequence_start=False)
    assert turn.history_token_len > 0


async def test_a_busy_session_refuses_a_second_request_and_finishes_the_first(pipe: AsyncEngine) -> None:
    async with asyncio.timeout(120):
        response = pipe.generate("Count to a hundred.", 7, GenerationConfig(max_new_tokens=40), sequence_end=False)
        await anext(response)
        with pytest.raises(ValueError, match="7"):
            await whole(pipe, QUESTION, 7, SHORT, sequence_start=False)
        assert [piece async for piece in response][-1].finish_reason
        generator = await pipe.get_generator(False, 7)
        ids = pipe.prepare(QUESTION).ids
        outputs = [output async for output in generator.async_stream_infer(ids, SHORT)]
    assert "".join(output.text for output in outputs) == "The capital of France is Paris."


async def test_get_generator_waits_for_the_session_unless_it_is_to_stop_it(pipe: AsyncEngine) -> None:
    response = asyncio.create_task(whole(pipe, "Tell me a story.", 8, ENDLESS))
    await eventually(lambda: pipe.engine.metrics()["requests_running"] == 1)
    waiting = asyncio.create_task(pipe.get_generator(False, 8))
    generator = await pipe.get_generator(True, 8)
    assert not waiting.done()
    await generator.async_cancel()
    await asyncio.wait_for(waiting, 60)
    assert (await response).finish_reason == "cancelled"


async def test_an_unknown_session_is_refused_and_ending_it_is_not(pipe: AsyncEngine) -> None:
    with pytest.raises(ValueError, match="4711"):
        await whole(pipe, QUESTION, 4711, SHORT, sequence_start=False)
    await pipe.end_session(4711)
    await pipe.stop_session(4711)


async def test_an_ended_session_is_gone(pipe: AsyncEngine) -> None:
    before = pipe.engine.metrics()["sessions"]
    await whole(pipe, QUESTION, 9, CUT_OFF, sequence_end=False)
    assert pipe.engine.metrics()["sessions"] == before + 1
    await pipe.end_session(9)
    assert pipe.engine.metrics()["sessions"] == before
    await whole(pipe, QUESTION, 10, CUT_OFF)
    assert pipe.engine.metrics()["sessions"] == before


def test_chat_remembers_the_turns(pipe: AsyncEngine) -> None:
    session = pipe.chat(QUESTION, gen_config=SHORT)
    assert session.response is not None
    assert session.response.text == "The capital of France is Paris."
    pipe.chat(NEXT, session=session, gen_config=CUT_OFF)
    pipe.chat("Why?", session=session, gen_config=SHORT)
    conversation = []
    for question, response in session.history[:2]:
        conversation += [user(str(question)), assistant(response)]
    assert [question for question, _ in session.history] == [QUESTION, NEXT, "Why?"]
    assert same_response(session.response, pipe([*conversation, user("Why?")], SHORT))
    assert f"USER: {NEXT}" in repr(session)
    session.close()
    session.close()
    eventually_sync(lambda: pipe.engine.metrics()["sessions"] == 0)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "forgotten by the engine"])
def test_a_chat_without_a_session_begins_again_with_its_history(pipe: AsyncEngine, *, is_closed: bool) -> None:
    session = pipe.chat(QUESTION, gen_config=SHORT)
    session.close() if is_closed else asyncio.run(pipe.end_session(session.session_id))
    pipe.chat(NEXT, session=session, gen_config=SHORT)
    assert session.response is not None
    conversation = [user(QUESTION), assistant(session.history[0][1]), user(NEXT)]
    assert same_response(session.response, pipe(conversation, SHORT))
    session.close()


def test_a_chat_that_outgrows_the_session_says_so(pipe: AsyncEngine) -> None:
    session = pipe.chat("word " * 300, gen_config=CUT_OFF)
    pipe.chat("word " * 300, session=session, gen_config=CUT_OFF)
    assert session.response is not None
    assert (session.response.text, session.response.finish_reason) == ("", "length")
    assert len(session.history) == 1
    pipe.chat(QUESTION, session=session, gen_config=CUT_OFF)
    assert len(session.history) == 2
    session.close()


def test_several_responses_to_one_prompt_are_a_list(pipe: AsyncEngine) -> None:
    config = GenerationConfig(n=3, max_new_tokens=4, do_sample=True, temperature=1.5, top_k=0, random_seed=3)
    responses = pipe([QUESTION, "Write a poem."], config)
    assert [[one.choice for one in choices] for choices in responses] == [[0, 1, 2]] * 2
    assert len({tuple(one.token_ids) for one in responses[1]}) > 1
    pieces: dict[tuple[int, int], str] = {}
    for piece in pipe.stream_infer([QUESTION, "Write a poem."], config):
        pieces[piece.index, piece.choice] = pieces.get((piece.index, piece.choice), "") + piece.text
    assert pieces == {(i, c): one.text for i, choices in enumerate(responses) for c, one in enumerate(choices)}
    assert [one.finish_reason for one in pipe("word " * 600, config)] == ["length"] * 3


def test_logits_processors_see_the_tokens_and_change_the_next_one(pipe: AsyncEngine) -> None:
    seen: list[list[int]] = []
    free = pipe(QUESTION, SHORT)

    def forbid_first(input_ids: Any, logits: Any) -> Any:
        seen.append(input_ids.tolist())
        logits[free.token_ids[0]] = -float("inf")
        return logits

    config = GenerationConfig(max_new_tokens=3, ignore_eos=True, logits_processors=[forbid_first])
    response = pipe(QUESTION, config)
    biased = pipe(QUESTION, GenerationConfig(max_new_tokens=3, ignore_eos=True, bad_token_ids=[free.token_ids[0]]))
    assert response.token_ids == biased.token_ids
    prompt = pipe.prepare(QUESTION).ids
    assert seen == [prompt + response.token_ids[:count] for count in range(3)]


def test_a_logits_processor_that_fails_ends_its_own_request(pipe: AsyncEngine) -> None:
    def fail(input_ids: Any, logits: Any) -> Any:
        raise ZeroDivisionError("surprise")

    with pytest.raises(ValueError, match="surprise"):
        pipe(QUESTION, GenerationConfig(logits_processors=[fail]))
    assert pipe(QUESTION, SHORT).text == "The capital of France is Paris."
