"""``lmdeploy chat``: a conversation in the terminal, whose turns the engine keeps."""

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.cli.chat import converse
from lmdeploy.offline.async_engine import AsyncEngine

QUESTION = "What is the capital of France?"
NEXT = "And of Italy?"
CONFIG = GenerationConfig(max_new_tokens=12)
BLOCK = 16  # tokens; the engine keeps whole blocks


@pytest.fixture(scope="module")
def pipe(default_model_dir: Path) -> Iterator[AsyncEngine]:
    config = TurbomindEngineConfig(
        dtype="float32",
        session_len=256,
        cache_max_entry_count=64,
        cache_block_seq_len=BLOCK,
        speculative_config="none",  # drafts are computed too
    )
    with pipeline(str(default_model_dir), backend_config=config) as loaded:
        yield loaded


def typed(monkeypatch: pytest.MonkeyPatch, *messages: str) -> None:
    """Let the user type messages, and leave."""
    lines = iter(messages)

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", read)


def test_a_turn_computes_nothing_again_but_for_an_unfinished_block(
    pipe: AsyncEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, QUESTION, NEXT)
    before = pipe.engine.metrics()["tokens_computed_total"]
    converse(pipe, CONFIG, "Answer briefly.")
    computed = pipe.engine.metrics()["tokens_computed_total"] - before
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": QUESTION}]
    first = pipe(messages, CONFIG)
    whole = pipe([*messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": NEXT}], CONFIG)
    printed = capsys.readouterr().out
    assert f"{first.text}\n" in printed
    assert f"{whole.text}\n" in printed
    tokens = whole.input_token_len + whole.generate_token_len
    assert first.input_token_len + first.generate_token_len > BLOCK + 16
    assert computed < tokens + BLOCK
    assert pipe.engine.metrics()["sessions"] == 0


def test_end_begins_a_new_conversation(
    pipe: AsyncEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "My name is Bob.", "end", QUESTION)
    converse(pipe, CONFIG, None)
    assert capsys.readouterr().out.count("(new conversation)\nThe capital of France is Paris.\n") == 1


def test_a_conversation_that_became_too_long_says_so_and_can_be_ended(
    pipe: AsyncEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "word " * 300, "end", QUESTION)
    converse(pipe, CONFIG, None)
    output = capsys.readouterr().out
    assert output.count("(the conversation is too long; `end` starts a new one)") == 1
    assert "The capital of France is Paris." in output


def test_ctrl_c_stops_a_response_and_the_conversation_goes_on(
    pipe: AsyncEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = builtins.print
    pieces = 0

    def interrupted(*values: Any, **options: Any) -> None:
        nonlocal pieces
        pieces += options.get("flush", False)
        if pieces == 3 and options.get("flush"):
            raise KeyboardInterrupt
        shown(*values, **options)

    monkeypatch.setattr(builtins, "print", interrupted)
    typed(monkeypatch, "Tell me a long story.", QUESTION)
    converse(pipe, GenerationConfig(max_new_tokens=100, min_new_tokens=8), None)
    first, _, rest = capsys.readouterr().out.partition("\n")[2].partition(" (stopped)\n")
    assert len(pipe.tokenizer.encode(first)) < 50
    assert rest.strip()
    assert pipe.engine.metrics()["requests_running"] == 0
