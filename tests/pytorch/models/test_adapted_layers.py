"""Adapters of models on the layers of `lmdeploy.pytorch.nn`: they add to what the checkpoint calls its layers.

An adapter stands for the checkpoint with `scale B A` added to its matrices, which the same class runs.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmdeploy.pytorch.models.llama import LlamaForCausalLM
from lmdeploy.pytorch.models.patched_model import PatchedModel
from tests.pytorch.models.test_own_models import MANUAL
from tests.pytorch.test_transformers_models import off
from tests.support.adapters import ATTENTION, MLP, make_adapter, merge
from tests.support.tiny_models import make_tiny
from tests.support.worker_steps import Part, StepDriver

VOCAB, HIDDEN = 1000, 32
TOKENS = [(37 * i * i + 11 * i) % 900 + 50 for i in range(40)]
TOLERANCE = 1e-4  # of the largest logit: float32, summed in another order
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}


@dataclass(frozen=True)
class Case:
    """A checkpoint, and the ends of the names of the layers that are adapted."""

    architecture: str
    targets: tuple[str, ...] = (*ATTENTION, *MLP)
    overrides: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "Llama": Case("LlamaForCausalLM", overrides={"attention_bias": True}),
    "Qwen3 with experts": Case("Qwen3MoeForCausalLM", (*ATTENTION, "gate"), EXPERTS),
    "the manual's Llama": Case(
        "LlamaForCausalLM", overrides={"tie_word_embeddings": False}, options={"custom_module_map": str(MANUAL)}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_adapters_have_the_logits_of_the_merged_checkpoint_alongside_rows_of_others(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    directory = make_tiny(tmp_path / "model", case.architecture, vocab_size=VOCAB, **case.overrides)
    adapter = make_adapter(tmp_path / "adapter", directory, targets=case.targets)
    other = make_adapter(tmp_path / "other", directory, targets=case.targets[1:2], seed=5)
    driver = StepDriver(directory, VOCAB, HIDDEN, **case.options)
    merged = StepDriver(merge(directory, adapter, tmp_path / "merged"), VOCAB, HIDDEN, **case.options)
    assert isinstance(driver.runner._model, PatchedModel)
    [expected], [base] = merged.step(Part(0, 0, TOKENS)), driver.step(Part(0, 0, TOKENS))
    driver.runner.set_adapter(1, str(adapter))
    driver.runner.set_adapter(2, str(other))
    parts = (Part(1, 0, TOKENS, 2), Part(2, 0, TOKENS[:25], 1), Part(3, 0, TOKENS))
    with_other, begun, without = driver.step(*parts)
    [ended] = driver.step(Part(2, 25, TOKENS[25:], 1))
    assert off(np.concatenate([begun, ended]), expected) < TOLERANCE
    assert off(without, base) < TOLERANCE
    assert min(off(expected, base), off(with_other, base), off(with_other, expected)) > 1e-3
    driver.runner.drop_adapter(1)
    assert off(driver.step(Part(4, 0, TOKENS))[0], base) < TOLERANCE


def test_experts_and_the_head_take_none(tmp_path: Path) -> None:
    model = PatchedModel(make_tiny(tmp_path, "Qwen3MoeForCausalLM", vocab_size=VOCAB, **EXPERTS))
    attention = {f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"}
    assert set(model.layers) == attention | {"model.layers.*.mlp.gate"}


class Rounding(LlamaForCausalLM):
    """A class that does not load what the checkpoint has."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        super().load_weights((name, tensor.bfloat16()) for name, tensor in weights)


def test_a_class_that_changes_weights_while_it_loads_them_takes_none_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = make_tiny(tmp_path, "LlamaForCausalLM", vocab_size=VOCAB)
    with caplog.at_level(logging.WARNING):
        model = PatchedModel(directory, custom_module_map={"LlamaForCausalLM": Rounding})
    assert model.layers == {}
    assert "takes no LoRA adapters: Rounding.load_weights: ValueError: " in caplog.text
    assert "_proj.weight is changed while it is loaded" in caplog.text
