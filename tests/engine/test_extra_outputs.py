"""Logits, hidden states, log probabilities and cross-entropy are those of `transformers` in float32.

They agree to 1e-4 of the largest value of their row: both sides sum in float32, in different orders.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.both_engines import BACKENDS, config_for
from tests.support.prompts import CONVERSATIONS

TOLERANCE = 1e-4
PROMPT = CONVERSATIONS[1]


@pytest.fixture(scope="module")
def reference(default_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=BACKENDS)
def pipe(request: pytest.FixtureRequest, default_model_dir: Path) -> Iterator[AsyncEngine]:
    # Prompts are computed in several chunks.
    config = config_for(
        request.param, dtype="float32", session_len=2048, cache_max_entry_count=64, max_prefill_token_num=32
    )
    with pipeline(str(default_model_dir), backend_config=config) as loaded:
        yield loaded


def forward(reference: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return reference(torch.tensor([ids]), output_hidden_states=True)


def assert_close(native: torch.Tensor, hf_model: torch.Tensor) -> None:
    assert native.shape == hf_model.shape
    error = (native - hf_model).abs().amax(dim=-1) / hf_model.abs().amax(dim=-1)
    assert float(error.max()) <= TOLERANCE


@pytest.mark.parametrize("rows", ["generation", "all"])
def test_logits_and_hidden_states_are_those_of_transformers(pipe: AsyncEngine, reference: Any, rows: Any) -> None:
    config = GenerationConfig(max_new_tokens=10, ignore_eos=True, output_logits=rows, output_last_hidden_state=rows)
    response = pipe(PROMPT, config)
    prompt = pipe.prepare(PROMPT).ids
    hf_model = forward(reference, prompt + response.token_ids[:-1])
    begin = len(prompt) - 1 if rows == "generation" else 0
    assert response.logits is not None
    assert response.last_hidden_state is not None
    assert_close(response.logits, hf_model.logits[0, begin:])
    assert_close(response.last_hidden_state, hf_model.hidden_states[-1][0, begin:])


def test_streamed_rows_join_to_those_of_the_whole_response(pipe: AsyncEngine) -> None:
    config = GenerationConfig(max_new_tokens=6, output_logits="all", output_last_hidden_state="generation", logprobs=3)
    response = pipe(PROMPT, config)
    pieces = list(pipe.stream_infer(PROMPT, config))
    logits = [piece.logits for piece in pieces if piece.logits is not None]
    hidden = [piece.last_hidden_state for piece in pieces if piece.last_hidden_state is not None]
    assert torch.equal(torch.cat(logits), response.logits)
    assert torch.equal(torch.cat(hidden), response.last_hidden_state)
    assert [row for piece in pieces for row in piece.logprobs or ()] == response.logprobs


def test_a_token_has_the_same_rows_whether_those_of_the_prompt_are_asked_for_too(pipe: AsyncEngine) -> None:
    def rows(requested: Any) -> torch.Tensor:
        config = GenerationConfig(
            max_new_tokens=4, ignore_eos=True, output_logits=requested, output_last_hidden_state=requested
        )
        response = pipe(PROMPT, config)
        assert response.logits is not None
        assert response.last_hidden_state is not None
        return torch.cat([response.logits, response.last_hidden_state], dim=1)

    few = rows("generation")
    assert len(few) == 4
    assert torch.equal(few, rows("all")[-4:])


def test_log_probabilities_are_those_of_transformers(pipe: AsyncEngine, reference: Any) -> None:
    response = pipe(PROMPT, GenerationConfig(max_new_tokens=16, ignore_eos=True, logprobs=5))
    prompt = pipe.prepare(PROMPT).ids
    hf_model = forward(reference, prompt + response.token_ids).logits[0, len(prompt) - 1 : -1].log_softmax(dim=-1)
    assert len(response.logprobs) == len(response.token_ids) == 16
    for token, native, row in zip(response.token_ids, response.logprobs, hf_model, strict=True):
        most_likely = row.topk(5).indices.tolist()
        assert set(native) == {token, *most_likely}
        for candidate, value in native.items():
            assert value == pytest.approx(float(row[candidate]), rel=TOLERANCE, abs=TOLERANCE)


def test_without_being_asked_for_there_are_none(pipe: AsyncEngine) -> None:
    response = pipe(PROMPT, GenerationConfig(max_new_tokens=2))
    assert (response.logits, response.last_hidden_state, response.logprobs) == (None, None, None)


def texts() -> list[str]:
    return ["The quick brown fox jumps over the lazy dog.", "你好，世界！ 🙂", "word salad " * 140]


def test_cross_entropy_is_that_of_transformers_for_short_and_long_texts(pipe: AsyncEngine, reference: Any) -> None:
    batch = [pipe.tokenizer.encode(text) for text in texts()]
    assert len(batch[-1]) > 8 * 32
    expected = []
    for ids in batch:
        with torch.no_grad():
            expected.append(float(reference(torch.tensor([ids]), labels=torch.tensor([ids])).loss))
    assert pipe.get_ppl(batch) == pytest.approx(expected, rel=TOLERANCE)
    assert pipe.get_ppl(batch[0]) == pytest.approx(expected[:1], rel=TOLERANCE)


def test_perplexity_takes_what_a_tokenizer_returns(pipe: AsyncEngine) -> None:
    tokenizer = pipe.tokenizer.hf_tokenizer
    encoded = tokenizer.apply_chat_template([{"role": "user", "content": "Hello, how are you?"}], return_dict=True)
    assert pipe.get_ppl(encoded) == pipe.get_ppl(encoded["input_ids"])


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([], "got 0"),
        ([504], "got 1"),
        ([504] * 3000, "got 3000"),
        ([[504, 504], [1]], "got 1"),
        ([504, 10**6], "vocab"),
    ],
)
def test_texts_that_cannot_be_scored_are_refused(pipe: AsyncEngine, ids: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        pipe.get_ppl(ids)
