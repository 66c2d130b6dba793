"""Models whose operators run on our kernels, as on a GPU: all families on one, two of them in Triton's interpreter."""

from pathlib import Path

import pytest
import torch

from lmdeploy.pytorch.gpu_cache import GpuPagedCache
from lmdeploy.pytorch.models.patched_model import PatchedModel
from lmdeploy.pytorch.nn import device as nn_device
from tests.pytorch.models import test_families as families
from tests.pytorch.models.stepping import run_chunks
from tests.pytorch.models.test_families import Case, expected_logits
from tests.support.tiny_models import make_tiny

HAS_GPU = torch.cuda.is_available()
SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
FEW = {
    "experts, norms of heads": Case("Qwen3MoeForCausalLM", SMALL | EXPERTS | {"num_hidden_layers": 1}),
    "windows": Case("MistralForCausalLM", SMALL | {"sliding_window": 3, "num_hidden_layers": 2}),
}
CASES = FEW | families.CASES if HAS_GPU else FEW
# A prompt's beginning, both in a step, decoding.
PROMPTS = families.PROMPTS if HAS_GPU else [[50, 7, 300, 21, 8, 99], [61, 500, 3, 17]]
CHUNKS = families.CHUNKS if HAS_GPU else [[3, 0], [2, 3], [1, 1]]
MAX_TOKENS = 48  # tokens of a block of the cache, which holds a whole sequence
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}  # of the largest logit


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(
    name: str, tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    make_tiny(tmp_path, case.architecture, vocab_size=1000, **case.overrides)
    expected = expected_logits(tmp_path, PROMPTS)
    model = PatchedModel(tmp_path, device=device)
    cache = GpuPagedCache(model.shapes, 0, model.dtype, device)
    cache.allocate(len(PROMPTS), MAX_TOKENS)
    monkeypatch.setattr(nn_device, "runs_kernels", lambda _: True)
    tolerance = TOLERANCE[case.overrides.get("dtype", "float32")]
    for native, reference in zip(run_chunks(model, PROMPTS, CHUNKS, cache, device), expected, strict=True):
        assert (native.cpu() - reference).abs().max() < tolerance * reference.abs().max()
