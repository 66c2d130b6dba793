"""The postprocessing model: the text of the tokens that were not shown yet, as the old clients need it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.support.fake_pb_utils import Request, TritonError, loaded_model

TEXT = "The 🐶 says 你好, naïvely.\n  Really."


@pytest.fixture(scope="module")
def model(default_model_dir: Path) -> Iterator[Any]:
    with loaded_model("postprocessing", model_path=str(default_model_dir)) as instance:
        yield instance


@pytest.fixture(scope="module")
def reference(default_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(default_model_dir)


def request_of(tokens: list[int], shown: int, skip: int | None = None) -> Request:
    inputs = {
        "TOKENS_BATCH": np.array(tokens, dtype=np.uint32).reshape(1, 1, -1),
        "sequence_length": np.array([[shown]], dtype=np.uint32),
    }
    return Request(**inputs, **({} if skip is None else {"skip_special_tokens": np.array([[skip]], dtype=np.int32)}))


def text_of(response: Any) -> str:
    assert response.error is None, response.error
    output = response.array("OUTPUT")
    assert output.shape == (1,)
    decoded: str = output[0].decode()
    return decoded


def test_whole_text_is_what_transformers_decodes(model: Any, reference: Any) -> None:
    ids = reference.encode(TEXT)
    [response] = model.execute([request_of(ids, 0)])
    assert text_of(response) == reference.decode(ids) == TEXT


def test_a_client_that_holds_back_broken_characters_shows_the_whole_text(model: Any, reference: Any) -> None:
    ids, shown, pieces, unsent = reference.encode(TEXT), 0, [], 0
    for count in range(len(ids) + 1):
        [response] = model.execute([request_of(ids[:count], shown)])
        piece = text_of(response)
        if piece.endswith("\N{REPLACEMENT CHARACTER}"):
            unsent += 1
            continue
        pieces.append(piece)
        shown = count
    assert unsent > 0
    assert "".join(pieces) == TEXT


def test_a_client_may_have_the_bytes_of_every_token(model: Any, reference: Any) -> None:
    ids = reference.encode(TEXT)
    request = Request(
        TOKENS_BATCH=np.array([[[token] for token in ids]], dtype=np.uint32),
        sequence_length=np.zeros((1, len(ids)), dtype=np.uint32),
    )
    request.reported = {"as_bytes": "true"}
    [response] = model.execute([request])
    pieces = response.array("OUTPUT").tolist()
    assert len(pieces) == len(ids)
    assert b"".join(pieces) == TEXT.encode()


@pytest.mark.parametrize(("skip", "expected"), [(None, "Hi"), (1, "Hi"), (0, "Hi<|im_end|>")])
def test_special_tokens_are_shown_only_when_asked_for(
    model: Any, reference: Any, skip: int | None, expected: str
) -> None:
    [response] = model.execute([request_of(reference.encode("Hi<|im_end|>"), 0, skip)])
    assert text_of(response) == expected


def test_nothing_new_is_the_empty_text(model: Any) -> None:
    assert [text_of(response) for response in model.execute([request_of([], 0), request_of([504], 1)])] == ["", ""]


def test_a_bad_request_is_refused_and_its_neighbours_are_answered(model: Any) -> None:
    first, unknown, short, last = model.execute(
        [
            request_of([504], 0),
            request_of([4_000_000_000], 0),
            Request(TOKENS_BATCH=np.ones((1, 1, 1), np.uint32)),
            request_of([504], 0),
        ]
    )
    assert "must be in [0, 49152), got 4000000000" in str(unknown.error)
    assert "must both be given" in str(short.error)
    assert {unknown.error.code, short.error.code} == {TritonError.INVALID_ARG}
    assert text_of(first) == text_of(last)
