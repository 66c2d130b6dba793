"""Tiny random models with experts or latent attention: logits are those of `transformers`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.tiny_models import make_tiny

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 9,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
    ),
    "qwen2-moe normalised": (
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
        },
    ),
}
TEXT = "Once upon a time, in a land far away, there lived a fox who could count to ten. " * 3


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    architecture, overrides = MODELS[name]
    directory = make_tiny(tmp_path / "model", architecture, **overrides)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    settings = TurbomindEngineConfig(
        dtype="float32", cache_max_entry_count=64, cache_block_seq_len=16, max_prefill_token_num=24,
        enable_prefix_caching=True,
    )  # fmt: skip
    config = GenerationConfig(max_new_tokens=12, ignore_eos=True, output_logits="generation")
    with pipeline(str(directory), backend_config=settings) as pipe:
        ids = pipe.tokenizer.encode(TEXT)
        for _ in range(2):
            answer = pipe(TEXT, config, do_preprocess=False)
            with torch.no_grad():
                theirs = reference(torch.tensor([ids + answer.token_ids[:-1]])).logits[0, len(ids) - 1 :]
            error = (answer.logits - theirs).abs().amax(-1) / theirs.abs().amax(-1)
            assert error.max() < 1e-4
        assert pipe.engine.metrics()["tokens_matched_total"] > 16
