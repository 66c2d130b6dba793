"""tools/passkey.py fills the session it is given, hides the number where it says, and reads answers."""

import random

import pytest

from lmdeploy.tokenizer import Tokenizer
from tools.passkey import FILLER, QUESTION, main, make_round


def test_a_round_fills_the_session_and_hides_the_number_at_its_depth(default_model_dir) -> None:
    tokenizer = Tokenizer(str(default_model_dir))

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_bos=False))

    source = random.Random(1)
    depths = set()
    for session_len in (512, 4096):
        asked = make_round(count, session_len, source)
        assert session_len - 160 - count(FILLER) < count(asked.prompt) < session_len - 64
        before, after = asked.prompt.split(f"The pass key is {asked.key}.")
        repeats = before.count(FILLER), after.count(FILLER)
        assert asked.depth == repeats[0] / sum(repeats)
        assert asked.prompt.endswith(QUESTION)
        depths.add(asked.depth)
    assert len(depths) == 2


def test_only_the_first_number_of_an_answer_counts() -> None:
    asked = make_round(lambda text: len(text) // 4, 1000, random.Random(0))
    assert asked.is_answered_by(f" {asked.key}. Remember it.")
    assert not asked.is_answered_by(f"{asked.key}0")
    assert not asked.is_answered_by(f"1 or {asked.key}")
    assert not asked.is_answered_by("I do not know.")


def test_a_session_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="session_len must leave room for the filler, got 100"):
        make_round(lambda text: len(text) // 4, 100, random.Random(0))


def test_the_default_model_is_asked(default_model_dir, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(default_model_dir), "--session-len", "512", "--rounds", "1"])
    output = capsys.readouterr().out
    assert "at depth" in output
    assert "of 1 found" in output
