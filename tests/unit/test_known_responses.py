"""Prompts with responses whose tokens their caller knows."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy.model import MODELS, chat_template_for
from lmdeploy.prompts import PromptPreparer
from lmdeploy.tokenizer import Tokenizer

FIRST: Any = [{"role": "user", "content": "Name the planets."}]
NEXT = {"role": "user", "content": "And the moons?"}


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer(str(default_model_dir))


@pytest.fixture(scope="module")
def preparer(tokenizer: Tokenizer, default_model_dir: Path) -> PromptPreparer:
    return PromptPreparer(tokenizer, chat_template_for(str(default_model_dir), tokenizer=tokenizer))


def second_turn(text: str, ids: Any = None, role: str = "assistant") -> list[dict[str, Any]]:
    response = {"role": role, "content": text}
    return [*FIRST, response if ids is None else response | {"token_ids": ids}, NEXT]


@settings(max_examples=40)
@given(parts=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=12), ends=st.booleans())
def test_a_later_prompt_begins_with_the_former_and_its_response_in_whatever_tokens(
    preparer: PromptPreparer, tokenizer: Tokenizer, parts: list[str], ends: bool
) -> None:
    """A response that is tokenized part by part is in tokens that a model may write and a tokenizer does not."""
    ids = [token for part in parts for token in tokenizer.encode(part, add_bos=False)]
    text = tokenizer.decode(ids, skip_special_tokens=False)
    reported = [*ids, tokenizer.eos_token_id] if ends else ids
    prompt = preparer.prepare(second_turn(text, reported)).ids
    beginning = preparer.prepare(FIRST).ids + ids
    assert prompt[: len(beginning)] == beginning
    retokenized = preparer.prepare(second_turn(text)).ids
    assert tokenizer.decode(prompt, skip_special_tokens=False) == tokenizer.decode(
        retokenized, skip_special_tokens=False
    )
    following = tokenizer.encode("<|im_end|>\n", add_bos=False)
    assert prompt[len(beginning) :][: len(following)] == following


def test_tokens_that_stand_nowhere_change_nothing(
    preparer: PromptPreparer, tokenizer: Tokenizer, default_model_dir: Path
) -> None:
    text = "the moons"
    odd = [token for letter in text for token in tokenizer.encode(letter, add_bos=False)]
    retokenized = preparer.prepare(second_turn(text)).ids
    assert preparer.prepare(second_turn(text, odd)).ids != retokenized
    other = tokenizer.encode("Mars", add_bos=False)
    starts = tokenizer.ids_of(["<|im_start|>"])
    for ids in ([], other, odd[:-1], [*odd, *other * 9], [*starts, *odd], [2**31 - 1]):
        assert preparer.prepare(second_turn(text, ids)).ids == retokenized
    # Not the assistant's; a template that puts no token after responses; texts that must stay text.
    assert preparer.prepare(second_turn(text, odd, "user")).ids == preparer.prepare(second_turn(text, role="user")).ids
    for other_way in (
        PromptPreparer(tokenizer, MODELS.get("base")()),
        PromptPreparer(tokenizer, chat_template_for(str(default_model_dir)), split_special_tokens=True),
    ):
        assert other_way.prepare(second_turn(text, odd)).ids == other_way.prepare(second_turn(text)).ids


@pytest.mark.parametrize("ids", [7, "7", [1.0], [True], [-1], [2**31], [[1]]])
def test_what_is_no_list_of_tokens_is_refused(preparer: PromptPreparer, ids: Any) -> None:
    with pytest.raises(ValueError, match=r"messages\[1\]\.token_ids must be a list of tokens"):
        preparer.prepare(second_turn("x", ids))
