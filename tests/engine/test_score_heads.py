"""Scores of heads over hidden states of the running engine, against `transformers`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.model_metadata.score_head import ScoreHead, judging_prompt, read_score_head, score_head_of
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tests.support import published
from tests.support.tiny_models import WHOLE_VOCABULARY, make_tiny

TEXTS = ["What is the capital of China?", "The capital of China is Beijing.", "Gravity"]
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen2ForSequenceClassification": {"num_labels": 3},
    "Qwen3ForSequenceClassification": {"num_labels": 1, "head_dim": 8},
    "LlamaForSequenceClassification": {"num_labels": 2},
    "GemmaForSequenceClassification": {"num_labels": 1, "head_dim": 8},
}


def numbers_of(checkpoint: Path, prompts: list[str]) -> tuple[ScoreHead, np.ndarray]:
    """Return a checkpoint's head, and its numbers for the engine's hidden states."""
    head = read_score_head(resolve(checkpoint).path)
    assert head is not None
    assert not head.refusal
    requested = GenerationConfig(max_new_tokens=1, output_last_hidden_state="generation")
    with pipeline(str(checkpoint), backend_config=TurbomindEngineConfig(dtype="float32", session_len=512)) as pipe:
        states = [response.last_hidden_state[0].numpy() for response in pipe(prompts, requested, do_preprocess=False)]
    return head, head.numbers(np.stack(states))


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_classifiers_say_what_transformers_says(architecture: str, dtype: str, tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", architecture, dtype=dtype, pad_token_id=0, **FAMILIES[architecture])
    head, numbers = numbers_of(directory, TEXTS)
    tokenizer = Tokenizer(str(directory))
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        expected = [reference(torch.tensor([tokenizer.encode(text)])).logits[0] for text in TEXTS]
    np.testing.assert_allclose(numbers, np.stack(expected), rtol=1e-4, atol=1e-4)
    assert head.labels == tuple(reference.config.id2label.values())


def test_a_reward_model_says_what_transformers_says(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1000000.0}
    directory = make_tiny(
        tmp_path / "model", "LlamaForSequenceClassification", pad_token_id=0, num_labels=1, rope_parameters=rope
    )
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    published.internlm2(directory)
    config = published.old_config(directory) | {"architectures": ["InternLM2ForRewardModel"], "pad_token_id": 0}
    published.rewrite(directory, config, lambda tensors, _: published.renamed(tensors, (r"^score\.", "v_head.")))
    head, numbers = numbers_of(directory, TEXTS)
    tokenizer = Tokenizer(str(directory))
    with torch.no_grad():
        expected = [reference(torch.tensor([tokenizer.encode(text)])).logits[0] for text in TEXTS]
    np.testing.assert_allclose(numbers, np.stack(expected), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(head.reported(numbers), numbers, rtol=1e-6)


def test_qwen3_reranker_says_yes_as_often_as_transformers(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "Qwen3-Reranker-tiny", "Qwen3ForCausalLM", head_dim=8, vocab_size=WHOLE_VOCABULARY)
    prompts = [judging_prompt(TEXTS[0], text) for text in TEXTS[1:]]
    head, numbers = numbers_of(directory, prompts)
    tokenizer = Tokenizer(str(directory))
    ((yes,), (no,)) = (tokenizer.encode(word, add_bos=False) for word in ("yes", "no"))
    reference = transformers.Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits = [reference(torch.tensor([tokenizer.encode(prompt)])).logits[0, -1, [yes, no]] for prompt in prompts]
    expected = [float(torch.softmax(row, dim=0)[0]) for row in logits]
    np.testing.assert_allclose(head.reported(numbers)[:, 0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("file", "config", "activation"),
    [
        ("config.json", {}, "sigmoid"),
        ("config.json", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        # As sentence-transformers 5 writes it.
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.linear.Identity"}, "identity"),
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.activation.Tanh"}, "Tanh is not"),
    ],
)
def test_the_activation_is_read_where_sentence_transformers_writes_it(
    file: str, config: dict[str, Any], activation: str, tmp_path: Path
) -> None:
    make_tiny(tmp_path, "Qwen3ForSequenceClassification", pad_token_id=0, num_labels=1, head_dim=8)
    before = json.loads((tmp_path / file).read_text()) if (tmp_path / file).is_file() else {}
    (tmp_path / file).write_text(json.dumps(before | config))
    head = score_head_of(tmp_path, "model", Tokenizer(str(tmp_path)))
    assert head is not None
    assert activation in (head.refusal or head.activation)
