"""Checkpoints of codes on a GPU: its layers multiply with the codes, and bring what these stand for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy.pytorch.native_layers import NativeLinear
from lmdeploy.pytorch.quantized_gpu_layers import AwqLinear, Fp8Linear, Int8Linear
from tests.pytorch.test_quantized_models import WIDE
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make, off
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint, with_values
from tests.support.scaled_checkpoints import FLOAT8, Form
from tests.support.worker_steps import Part, StepDriver

PARTS = [Part(0, 0, [5, 17, 400]), Part(1, 0, [*range(20, 37)])]
# How it is stored, what multiplies, and how far from numbers. The interpreter loses the carry of an e4m3 magnitude that
# is rounded up to a power of two (test_linear.py), which costs half of that value.
FORMS: dict[str, tuple[Any, type, float]] = {
    "awq": (Scheme("awq"), AwqLinear, 1e-3),
    "int8": (Form("smooth_quant", torch.int8, "channel", "scale"), Int8Linear, 0.03),
    "fp8 block": (Form("fp8", FLOAT8, "block", "weight_scale_inv"), Fp8Linear, 0.25),
    "gptq": (Scheme("gptq"), NativeLinear, 1e-4),  # no kernel takes them: numbers
}


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_what_the_codes_stand_for(
    form: str, tmp_path: Path, gpu_driver: Callable[..., StepDriver]
) -> None:
    scheme, layer_class, limit = FORMS[form]
    make(tmp_path / "plain", "LlamaForCausalLM", **WIDE | {"num_hidden_layers": 1})
    values = quantize_checkpoint(tmp_path / "plain", tmp_path / "coded", scheme)
    with_values(tmp_path / "plain", tmp_path / "numbers", values)
    cpu = StepDriver(tmp_path / "numbers", VOCAB, HIDDEN, dtype="float32", by_transformers=True, device="cpu")
    gpu = gpu_driver(tmp_path / "coded", VOCAB, HIDDEN, dtype="float32", by_transformers=True)
    model: Any = gpu.runner._model
    names = [name.removesuffix(".weight") for name in values]
    assert {type(model._model.get_submodule(name)) for name in names} == {layer_class}
    for native, reference in zip(gpu.step(*PARTS), cpu.step(*PARTS), strict=True):
        assert off(native, reference) < limit
