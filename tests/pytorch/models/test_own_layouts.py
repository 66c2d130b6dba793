"""Families that their authors publish with code of their own, on classes of `lmdeploy.pytorch.models`."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import FalconForCausalLM

from lmdeploy.errors import UnsupportedModelError
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make, off, reference, tokens_of
from tests.support import published
from tests.support.worker_steps import Part, StepDriver

FOUR_HEADS = {"num_key_value_heads": 4, "tie_word_embeddings": False}
INTERNLM = FOUR_HEADS | {"attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}
CASES: dict[str, tuple[str, dict[str, Any], Callable[[Path], None]]] = {
    "InternLM": ("LlamaForCausalLM", INTERNLM, published.internlm),
    "Baichuan 7B": ("LlamaForCausalLM", FOUR_HEADS, published.baichuan),
    "Qwen": ("Qwen2ForCausalLM", FOUR_HEADS, published.qwen),
}
DEEPSEEK_MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 48,
    "mlp_only_layers": [0],
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "qkv_bias": False,
}


@pytest.mark.parametrize("family", CASES)
def test_logits_are_those_of_the_architecture_they_were_made_from(tmp_path: Path, family: str) -> None:
    architecture, more, publish = CASES[family]
    wanted = reference(make(tmp_path, architecture, **more), tokens := tokens_of(40))
    publish(tmp_path)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    first, _ = driver.step(Part(0, 0, tokens[:25]), Part(1, 0, tokens[:3]))
    [second] = driver.step(Part(0, 25, tokens[25:]))
    assert off(first, wanted[:25]) < 1e-4
    assert off(second, wanted[25:]) < 1e-4


def test_deepseek_moe_s_logits_are_those_of_experts_whose_shared_one_has_no_gate(tmp_path: Path) -> None:
    model = make(tmp_path, "Qwen2MoeForCausalLM", **FOUR_HEADS | DEEPSEEK_MOE)
    published.deepseek_moe(tmp_path)
    with torch.no_grad():
        wanted = published.ungated_forward(model, tokens := tokens_of(40)).numpy()
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    first, _ = driver.step(Part(0, 0, tokens[:25]), Part(1, 0, tokens[:3]))
    [second] = driver.step(Part(0, 25, tokens[25:]))
    assert off(first, wanted[:25]) < 1e-4
    assert off(second, wanted[25:]) < 1e-4


def test_qwen_stretches_positions_and_queries_by_each_sequence_s_own_prompt(tmp_path: Path) -> None:
    trained, tokens = 16, tokens_of(40)
    model = make(tmp_path, "Qwen2ForCausalLM", **FOUR_HEADS)
    within = reference(model, tokens[:9])
    published.qwen(tmp_path, trained_length=trained)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    first, short = driver.step(Part(0, 0, tokens[:25], prompt=40), Part(1, 0, tokens[:9]))
    [second] = driver.step(Part(0, 25, tokens[25:], prompt=40))
    # 40 tokens are more than two and at most four times 16: the base grows by 2^3 - 1.
    rotary, dim = model.model.rotary_emb, 2 * len(model.model.rotary_emb.inv_freq)
    base = 10000.0 * 7 ** (dim / (dim - 2))
    rotary.inv_freq.copy_(base ** -(torch.arange(0, dim, 2).double() / dim))
    growth = (torch.arange(1, 41).double().log() / math.log(trained)).clamp(min=1).float()
    for layer in model.model.layers:
        layer.self_attn.q_proj.register_forward_hook(lambda _, given, queries: queries * growth[:, None])
    wanted = reference(model, tokens)
    assert off(short, within) < 1e-4
    assert off(first, wanted[:25]) < 1e-4
    assert off(second, wanted[25:]) < 1e-4


def test_baichuan2_normalises_its_head(tmp_path: Path) -> None:
    vocab = 125696
    model = make(tmp_path, "LlamaForCausalLM", **FOUR_HEADS | {"vocab_size": vocab})
    head = model.lm_head.weight.data
    head.copy_(head / head.norm(dim=-1, keepdim=True))
    wanted = reference(model, tokens_of(8))
    published.baichuan(tmp_path)  # with the head as it was
    [logits] = StepDriver(tmp_path, vocab, HIDDEN).step(Part(0, 0, tokens_of(8)))
    assert off(logits, wanted) < 1e-4


@pytest.mark.parametrize(
    "more", [{"use_qkv_bias": True}, {"use_parallel_residual": True, "partial_rotary_factor": 0.5}], ids=str
)
def test_stablelm_s_logits_are_those_of_transformers(tmp_path: Path, more: dict[str, Any]) -> None:
    wanted = reference(make(tmp_path, "StableLmForCausalLM", **more), tokens := tokens_of(40))
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    first, _ = driver.step(Part(0, 0, tokens[:25]), Part(1, 0, tokens[:3]))
    [second] = driver.step(Part(0, 25, tokens[25:]))
    assert off(first, wanted[:25]) < 1e-4
    assert off(second, wanted[25:]) < 1e-4


FALCON = {"num_key_value_heads": None, "ffn_hidden_size": 96}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
FALCONS: dict[str, dict[str, Any]] = {
    "7B": {"multi_query": True, "parallel_attn": True},
    "without multi-query": {"multi_query": False, "bias": True},
    "in sequence": {"parallel_attn": False},
    "40B": NEW,
    "11B": NEW | {"num_ln_in_parallel_attn": 1},
    "RW": {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True},
}


@pytest.mark.parametrize("size", FALCONS)
def test_falcon_s_logits_are_those_of_transformers(tmp_path: Path, size: str) -> None:
    model = make(tmp_path, "FalconForCausalLM", **FALCON | FALCONS[size])
    if size == "RW":  # its eager attention adds the distances twice
        model = FalconForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    wanted = reference(model, tokens := tokens_of(40))
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    first, _ = driver.step(Part(0, 0, tokens[:25]), Part(1, 0, tokens[:3]))
    [second] = driver.step(Part(0, 25, tokens[25:]))
    assert off(first, wanted[:25]) < 1e-4
    assert off(second, wanted[25:]) < 1e-4


def test_falcon_with_another_activation_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "FalconForCausalLM", **FALCON | {"activation": "relu"})
    with pytest.raises(UnsupportedModelError, match="Falcon with activation 'relu'"):
        StepDriver(tmp_path, VOCAB, HIDDEN)


def test_baichuan_13b_attends_by_alibi(tmp_path: Path) -> None:
    model = make(tmp_path, "LlamaForCausalLM", **FOUR_HEADS)
    with torch.no_grad():
        wanted = published.alibi_forward(model, tokens := tokens_of(40)).numpy()
    published.baichuan_alibi(tmp_path)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    first, _ = driver.step(Part(0, 0, tokens[:25]), Part(1, 0, tokens[:3]))
    [second] = driver.step(Part(0, 25, tokens[25:]))
    assert off(first, wanted[:25]) < 1e-4
    assert off(second, wanted[25:]) < 1e-4
