"""Checkpoints on CUDA, emulated and on a GPU, that are written by packages which a machine with a GPU need not have."""

from pathlib import Path

import pytest
import torch

from tests.engine.test_cuda_engine import PROMPT, on_cuda
from tests.support.tiny_models import make_small, make_tiny
from tests.support.token_engine import TokenEngine, relative_error

pytest.importorskip("compressed_tensors", reason="its codes are written by the package compressed-tensors")
pytest.importorskip("gguf", reason="GGUF files are written by the package gguf")

from tests.engine import test_gguf_models as gguf_models
from tests.support.gguf_files import write_gguf
from tests.support.quantized_checkpoints import quantize_checkpoint
from tests.support.row_quantized import RowForm

__all__ = ["on_cuda"]


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize(
    "form",
    [RowForm(is_symmetric=False, is_ordered=True), RowForm("nvfp4-pack-quantized", group=16)],
    ids=["W4A16", "NVFP4"],
)
def test_codes_stored_by_output_are_multiplied_as_on_the_cpu(form: RowForm, tmp_path: Path, on_cuda: int) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "initializer_range": 0.05, "num_hidden_layers": 1}
    source = make_tiny(tmp_path / "source", "LlamaForCausalLM", **sizes)
    quantize_checkpoint(source, tmp_path / "model", form)

    def logits(device: str) -> torch.Tensor:
        with TokenEngine(tmp_path / "model", device=device, dtype="float32") as engine:
            return engine.generate(PROMPT, 1, "all")[1]

    assert relative_error(logits("cuda"), logits("cpu")) < 0.03  # of 8-bit activations on the CPU


def test_codes_of_gguf_files_are_multiplied_and_those_with_minima_become_numbers(tmp_path: Path, on_cuda: int) -> None:
    source = make_small(tmp_path / "source", "LlamaForCausalLM", hidden_size=64, intermediate_size=96)
    values = write_gguf(source, tmp_path / "model.gguf", "llama", gguf_models.mixed)
    with TokenEngine(tmp_path / "model.gguf", device="cuda", session_len=96) as engine:
        _, logits = engine.generate(gguf_models.PROMPT, 1, "all")
    expected = gguf_models.logits_of_transformers(source, gguf_models.PROMPT, values)
    assert relative_error(logits, expected) < gguf_models.LIMIT
