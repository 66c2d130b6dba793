"""Greedy responses of the default model are those of `transformers`, token for token.

The reference is teacher-forced: `transformers` reads prompt and response in one pass, and every response token
must be the argmax of the logits before it. By induction that is the same as comparing with its own greedy response, and
it shows a tie where there is one: a token whose logit is within 1e-4 of the largest counts as right.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.prompts import CONVERSATIONS

TIE = 1e-4
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def reference(default_model_dir):
    return AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def pipe(default_model_dir):
    with pipeline(str(default_model_dir), backend_config=TurbomindEngineConfig(dtype="float32")) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def responses(pipe):
    return pipe(CONVERSATIONS, GenerationConfig(max_new_tokens=NEW_TOKENS))


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize("index", range(len(CONVERSATIONS)))
def test_every_greedy_token_is_the_one_transformers_would_choose(index, pipe, responses, reference) -> None:
    prompt = pipe.prepare(CONVERSATIONS[index]).ids
    response = responses[index]
    tokens = list(response.token_ids)
    assert response.input_token_len == len(prompt)
    if response.finish_reason == "stop":
        tokens.append(pipe.tokenizer.eos_token_id)
    else:
        assert len(tokens) == NEW_TOKENS
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    gaps = logits.max(dim=-1).values - logits[torch.arange(len(tokens)), torch.tensor(tokens)]
    wrong = [(position, float(gap)) for position, gap in enumerate(gaps) if gap > TIE]
    assert not wrong, f"tokens (position, logit behind the best): {wrong}"


def test_the_text_is_what_transformers_decodes(pipe, responses) -> None:
    for response in responses:
        assert response.text == pipe.tokenizer.decode(response.token_ids).rstrip("\ufffd")


def test_bfloat16_weights_answer_the_question(default_model_dir) -> None:
    with pipeline(str(default_model_dir), backend_config=TurbomindEngineConfig(dtype="bfloat16")) as loaded:
        assert "Paris" in loaded("What is the capital of France?").text
