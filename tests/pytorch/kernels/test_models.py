"""Models whose operators run on our kernels where there are any, as on a GPU: here in Triton's interpreter."""

from pathlib import Path

import pytest
import torch

from lmdeploy.pytorch.gpu_cache import GpuPagedCache
from lmdeploy.pytorch.models.patched_model import PatchedModel
from lmdeploy.pytorch.nn import device as nn_device
from tests.pytorch.models.stepping import run_chunks
from tests.support.tiny_models import make_tiny

PROMPTS = [[50, 7, 300, 21, 8, 99], [61, 500, 3, 17]]
CHUNKS = [[3, 0], [2, 3], [1, 1]]  # a prompt's beginning, both in a step, decoding
SMALL = {"vocab_size": 600, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of these tests are on the CPU, for the interpreter")
@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("Qwen3MoeForCausalLM", EXPERTS | {"num_hidden_layers": 1}),
        ("Gemma2ForCausalLM", {"sliding_window": 3, "attn_logit_softcapping": 5.0, "num_hidden_layers": 2}),
    ],
    ids=["experts, norms of heads", "windows, soft cap, GELU"],
)
def test_logits_are_those_of_plain_pytorch(
    architecture: str, overrides: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny(tmp_path, architecture, **SMALL | overrides)
    model = PatchedModel(tmp_path)
    expected = run_chunks(model, PROMPTS, CHUNKS)
    cache = GpuPagedCache(model.shapes, 0, torch.float32, "cpu")
    cache.allocate(len(PROMPTS), 8)
    monkeypatch.setattr(nn_device, "runs_kernels", lambda _: True)
    for ours, theirs in zip(run_chunks(model, PROMPTS, CHUNKS, cache), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
