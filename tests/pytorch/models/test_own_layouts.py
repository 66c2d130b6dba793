"""Families that their authors publish with code of their own, on classes of `lmdeploy.pytorch.models`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.errors import UnsupportedModelError
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make, off, reference, tokens_of
from tests.support import published
from tests.support.worker_steps import Part, StepDriver

FOUR_HEADS = {"num_key_value_heads": 4, "tie_word_embeddings": False}
INTERNLM = FOUR_HEADS | {"attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}
CASES: dict[str, tuple[dict[str, Any], Callable[[Path], None]]] = {
    "InternLM": (INTERNLM, published.internlm),
    "Baichuan 7B": (FOUR_HEADS, published.baichuan),
}


@pytest.mark.parametrize("family", CASES)
def test_logits_are_those_of_the_architecture_they_were_made_from(tmp_path: Path, family: str) -> None:
    more, publish = CASES[family]
    wanted = reference(make(tmp_path, "LlamaForCausalLM", **more), tokens := tokens_of(40))
    publish(tmp_path)
    driver = StepDriver(tmp_path, VOCAB, HIDDEN)
    first, _ = driver.step(Part(0, 0, tokens[:25]), Part(1, 0, tokens[:3]))
    [second] = driver.step(Part(0, 25, tokens[25:]))
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


def test_attention_by_alibi_is_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "LlamaForCausalLM", **FOUR_HEADS)
    published.baichuan_alibi(tmp_path)
    with pytest.raises(UnsupportedModelError, match="ALiBi, which the PyTorch engine does not have; the TurboMind"):
        StepDriver(tmp_path, VOCAB, HIDDEN)
