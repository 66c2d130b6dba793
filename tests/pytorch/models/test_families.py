"""Models in the engine's own style give the logits of ``transformers``, over chunks and in company."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy import _turbomind
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.models.patched_model import PatchedModel
from tests.kernels.device import BF16_PRODUCTS
from tests.pytorch.models.stepping import run_chunks
from tests.support.tiny_models import LLAMA3_ROPE, make_tiny

TOLERANCE = 1e-4  # of the largest logit: float32, summed in another order
# The same where the operators round inputs to bfloat16, by 2^-9 each, in eight layers one after the other.
ROUNDED_TOLERANCE = 8 * 2.0**-8
PROMPTS = [[(37 * i * i + 11 * i) % 900 + 50 for i in range(45)], [(53 * i * i + 7 * i) % 900 + 60 for i in range(20)]]
# A chunk alone, both in a step, then decoding.
CHUNKS = [[10, 0], [30, 17], [3, 1], [1, 1], [1, 1]]
SMALL_HEADS = {"head_dim": 16}
UNTIED = {"tie_word_embeddings": False}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}


@dataclass(frozen=True)
class Case:
    """A model that `transformers` makes and runs."""

    architecture: str
    overrides: dict[str, Any] = field(default_factory=dict)


CASES = {
    "Llama": Case("LlamaForCausalLM", UNTIED | {"attention_bias": True, "mlp_bias": True}),
    "Llama in bfloat16": Case("LlamaForCausalLM", {"dtype": "bfloat16"}),
    "Llama 3.1": Case("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "Llama with YaRN": Case("LlamaForCausalLM", {"rope_parameters": YARN_ROPE}),
    "Mistral": Case("MistralForCausalLM", SMALL_HEADS | {"sliding_window": 12}),
    "Qwen2": Case("Qwen2ForCausalLM"),
    "Qwen2 with windows": Case(
        "Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
    ),
    "Qwen2 with experts": Case(
        "Qwen2MoeForCausalLM",
        EXPERTS | {"shared_expert_intermediate_size": 48, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    "Qwen3": Case("Qwen3ForCausalLM", SMALL_HEADS),
    "Qwen3 with experts": Case("Qwen3MoeForCausalLM", SMALL_HEADS | EXPERTS | {"norm_topk_prob": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    make_tiny(tmp_path, case.architecture, vocab_size=1000, **case.overrides)
    expected = expected_logits(tmp_path)
    rounds = case.overrides.get("dtype") == "bfloat16" and _turbomind.cpu_isa() in BF16_PRODUCTS
    for used in (kernels(1), None):  # the engine's operators, and plain PyTorch
        tolerance = ROUNDED_TOLERANCE if rounds and used is not None else TOLERANCE
        got = run_chunks(PatchedModel(tmp_path, kernels=used), PROMPTS, CHUNKS)
        for native, reference in zip(got, expected, strict=True):
            bound = tolerance * reference.abs().max()
            assert (native - reference).abs().max() < bound
            chosen = reference.gather(-1, native.argmax(-1, keepdim=True)).squeeze(-1)
            assert (chosen > reference.amax(-1) - 2 * bound).all()


def expected_logits(directory: Path, prompts: list[list[int]] = PROMPTS) -> list[torch.Tensor]:
    """Return the logits of ``transformers`` for each prompt."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").float().eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0].float() for prompt in prompts]
