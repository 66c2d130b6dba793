"""Tiny random models against `transformers`: shapes, biases, RoPE scalings and head layouts the default model lacks."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.tiny_models import make_tiny_llama

VARIANTS = {
    "plain": {},
    "one key/value head": {"num_attention_heads": 8, "num_key_value_heads": 1},
    "all heads": {"num_key_value_heads": 4},
    "untied embeddings": {"tie_word_embeddings": False},
    "attention bias": {"attention_bias": True},
    "own head_dim": {"head_dim": 24},
    "llama3 rope": {
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_tiny_model_chooses_the_tokens_transformers_chooses(name: str, tmp_path) -> None:
    directory = make_tiny_llama(tmp_path / "model", **VARIANTS[name])
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    config = TurbomindEngineConfig(dtype="float32", session_len=256, cache_max_entry_count=64, num_tokens_per_iter=16)
    prompts = ["Once upon a time, in a land far away, " * 4, "def main():", "你好"]
    with pipeline(str(directory), backend_config=config) as pipe:
        answers = pipe(prompts, GenerationConfig(max_new_tokens=40, ignore_eos=True), do_preprocess=False)
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = pipe.tokenizer.encode(prompt)
            assert len(answer.token_ids) == 40
            with torch.no_grad():
                logits = reference(torch.tensor([ids + answer.token_ids])).logits[0, len(ids) - 1 : -1]
            gaps = logits.max(dim=-1).values - logits[torch.arange(40), torch.tensor(answer.token_ids)]
            assert gaps.max() <= 1e-4 * logits.abs().max()
