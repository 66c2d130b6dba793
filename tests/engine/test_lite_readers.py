"""Output of `lmdeploy lite` is read by `transformers` and the package `compressed-tensors`, which are not ours.

The forms of AWQ and GPTQ themselves are read by readers of the tests' own (tests/support/quantized_checkpoints.py, in
test_lite_families.py): `transformers` reads them by the package `gptqmodel` alone, which is not installed here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from lmdeploy.lite.auto_awq import AwqSettings, auto_awq
from lmdeploy.lite.auto_gptq import GptqSettings, auto_gptq
from lmdeploy.lite.smooth_quant import SmoothQuantSettings, smooth_quant
from tests.engine.test_quantized_checkpoints import LIMIT, distance
from tests.support.tiny_models import make_tiny
from tests.support.token_engine import TokenEngine

PROMPT = [(37 * i * i + 11 * i) % 250 + 2 for i in range(40)]
COMMON: dict[str, Any] = {"calib_samples": 2, "calib_seqlen": 64, "format": "compressed-tensors"}
WRITERS: dict[str, Callable[[Path, Path], Path]] = {
    "AWQ": lambda source, target: auto_awq(source, target, AwqSettings(w_group_size=32, **COMMON)),
    "AWQ, 8 bits, whole rows": lambda source, target: auto_awq(
        source, target, AwqSettings(w_bits=8, w_group_size=-1, w_sym=True, **COMMON)
    ),
    "GPTQ": lambda source, target: auto_gptq(source, target, GptqSettings(**COMMON)),
    "SmoothQuant, int8": lambda source, target: smooth_quant(source, target, SmoothQuantSettings(**COMMON)),
    "SmoothQuant, fp8": lambda source, target: smooth_quant(
        source, target, SmoothQuantSettings(quant_dtype="fp8", **COMMON)
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_transformers_reads_the_numbers_that_the_engine_does(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "initializer_range": 0.05, "tie_word_embeddings": False}
    source = make_tiny(tmp_path / "source", "LlamaForCausalLM", **sizes)
    written = WRITERS[name](source, tmp_path / "written")
    model = AutoModelForCausalLM.from_pretrained(
        written, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
    ).eval()
    original = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        read, exact = (network(torch.tensor([PROMPT])).logits[0] for network in (model, original))
    with TokenEngine(written, dtype="float32") as engine:
        served = engine.generate(PROMPT, 1, "all")[1]
    assert distance(served, read) < LIMIT
    # It is the model, but for rounding: what is read with a wrong scale or order is off by more than 1.
    assert distance(read, exact) < 0.3


def test_an_order_of_inputs_has_no_form_there() -> None:
    with pytest.raises(ValueError, match="no form for inputs in an order: leave --act-order or --format out"):
        GptqSettings(act_order=True, **COMMON)
    with pytest.raises(ValueError, match="format must be one of own, compressed-tensors, got 'gguf'"):
        AwqSettings(format="gguf")
