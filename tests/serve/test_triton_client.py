"""``lmdeploy serve triton_client`` against a scripted Triton: what it sends, what it shows, how it leaves."""

import builtins
import itertools
import json
import signal
import time
from typing import Any

import grpc
import pytest

from lmdeploy.cli.terminal import read_message
from tests.support.commands import TerminalCommand
from tests.support.fake_triton import FakeTriton, Script

REPLY = "The capital of France is Paris."
PROMPT = ">>> "


def chat(triton: FakeTriton, *options: str) -> TerminalCommand:
    return TerminalCommand("serve", "triton_client", triton.address, *options)


def conversation(inputs: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in json.loads(inputs["messages"])]


def test_turns_of_a_conversation_are_one_session(triton: FakeTriton) -> None:
    with chat(triton, "--session-id", "7", "--meta-instruction", "Be brief.", "--stream-output") as terminal:
        for turn in ("one\\\ntwo", "three", "end", "four", "exit"):
            terminal.type(turn)
        assert terminal.status() == 0
    first, second, third = [request.inputs for request in triton.requests]
    assert conversation(first) == [("system", "Be brief."), ("user", "one\ntwo")]
    assert conversation(second) == [("user", "three")]
    assert conversation(third) == [("system", "Be brief."), ("user", "four")]
    assert [inputs["sequence_start"] for inputs in (first, second, third)] == [True, False, True]
    assert {inputs["session_id"] for inputs in (first, second, third)} == {7}
    assert [(control["END"], control["CORRID"]) for control in triton.controls] == [(1, 7), (1, 7)]
    assert terminal.output.count(REPLY) == 3
    assert terminal.output.startswith("fake-model: Enter sends the message; a `\\` at the end of a line, or ")


def test_conversations_of_two_terminals_are_two_sessions(triton: FakeTriton) -> None:
    for _ in range(2):
        with chat(triton) as terminal:
            terminal.type("hi")
            terminal.type("exit")
            assert terminal.status() == 0
    assert len({request.inputs["session_id"] for request in triton.requests}) == 2


def test_sampling_flags_reach_the_engine(triton: FakeTriton) -> None:
    flags = {"max-new-tokens": 9, "temperature": 0.5, "top-p": 0.25, "top-k": 3, "repetition-penalty": 1.5, "seed": 11}
    with chat(triton, *(f"--{name}={value}" for name, value in flags.items())) as terminal:
        terminal.type("hi")
        terminal.type("exit")
        assert terminal.status() == 0
    [request] = triton.requests
    names = {name.replace("-", "_"): value for name, value in flags.items()} | {"random_seed": flags["seed"]}
    del names["seed"]
    assert {name: request.inputs[name] for name in names} == names


def test_tokens_are_shown_as_they_come(triton: FakeTriton) -> None:
    triton.script = Script(hold_after=2)
    with chat(triton) as terminal:
        terminal.type("hi")
        terminal.wait_for("The capital of France")
        assert "Paris" not in terminal.output


def test_a_session_the_server_has_forgotten_begins_again_with_the_whole_conversation(triton: FakeTriton) -> None:
    with chat(triton) as terminal:
        terminal.type("one")
        terminal.wait_for(PROMPT, 2)
        triton.sessions.clear()
        terminal.type("two")
        terminal.wait_for(REPLY, 2)
        terminal.type("exit")
        assert terminal.status() == 0
    last = triton.requests[-1].inputs
    assert conversation(last) == [("user", "one"), ("assistant", REPLY), ("user", "two")]
    assert last["sequence_start"] is True


def test_after_a_response_that_was_cut_off_the_whole_conversation_is_sent(triton: FakeTriton) -> None:
    triton.script = Script(finish_reason="length")
    with chat(triton) as terminal:
        for turn in ("one", "two", "exit"):
            terminal.type(turn)
        assert terminal.status() == 0
    assert conversation(triton.requests[-1].inputs)[0] == ("user", "one")
    assert "(cut off)" in terminal.output


def test_an_error_is_shown_and_the_conversation_goes_on(triton: FakeTriton) -> None:
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, "top_k must be >= 0, got -1"))
    with chat(triton) as terminal:
        terminal.type("one")
        terminal.wait_for("top_k must be >= 0, got -1")
        triton.script = Script()
        terminal.type("two")
        terminal.wait_for(REPLY)
        terminal.type("exit")
        assert terminal.status() == 0
    assert conversation(triton.requests[-1].inputs) == [("user", "two")]
    assert "Traceback" not in terminal.output


def test_a_server_that_goes_away_is_named_and_may_come_back(triton: FakeTriton) -> None:
    with chat(triton) as terminal:
        terminal.wait_for(PROMPT)
        triton.stop()
        terminal.type("one")
        terminal.wait_for("is not available")
        triton.start()
        triton.reset()
        deadline = time.monotonic() + 180
        for attempt in itertools.count(2):  # gRPC waits up to a second before it connects again
            terminal.wait_for(PROMPT, attempt)
            if REPLY in terminal.output:
                break
            assert time.monotonic() < deadline, terminal.output
            terminal.type("two")


@pytest.mark.parametrize(
    ("typed", "messages"),
    [
        (["one", "two"], ["one", "two"]),
        (["", "  ", "one"], ["", "", "one"]),
        (["one\\", "two\\", "", "three"], ["one\ntwo", "three"]),
        (['"""one', "", "two \\", 'three"""', "four"], ["one\n\ntwo \\\nthree", "four"]),
        (['"""', "exit", '"""'], ["exit"]),
        (['"""one"""', "exit", "two"], ["one"]),
        (["one\\"], ["one"]),
        (["one\\", KeyboardInterrupt, "two"], ["", "two"]),
    ],
)
def test_enter_sends_and_backslashes_or_quotes_continue(
    typed: list[Any], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(typed)

    def read(prompt: str) -> str:
        line = next(lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr(builtins, "input", read)
    assert list(iter(read_message, None)) == messages


def test_at_the_prompt_ctrl_c_says_how_to_leave_and_ctrl_d_leaves(triton: FakeTriton) -> None:
    with chat(triton) as terminal:
        terminal.wait_for(PROMPT)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("(`exit` or Ctrl-D leaves)")
        terminal.type("hi")
        terminal.wait_for(REPLY)
        terminal.close_input()
        assert terminal.status() == 0
    assert "Traceback" not in terminal.output
