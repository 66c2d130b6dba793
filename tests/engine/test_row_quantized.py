"""Models as compressed-tensors, ModelOpt and Quark store them, against `transformers` run on the numbers stored."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.engine.test_quantized_checkpoints import (
    EXPERTS,
    LIMIT,
    SIZES,
    WEIGHTS,
    distance,
    logits_of,
    reference_of,
    source,
)
from tests.support.block_quantized import Encoder, affine, four_bits, int8
from tests.support.block_quantized import quantize_checkpoint as quantize_blocks
from tests.support.row_quantized import RowForm, quantize_checkpoint, quantize_layer
from tests.support.scaled_checkpoints import FLOAT8, Form
from tests.support.scaled_checkpoints import quantize_checkpoint as scale_checkpoint
from tests.support.tiny_models import make_tiny

__all__ = ["source"]  # a fixture

MX, NV = "mxfp4-pack-quantized", "nvfp4-pack-quantized"
FORMS = {
    "W4A16": RowForm(),
    "W4A16 with zero points": RowForm(group=128, is_symmetric=False),
    "W4A16 in order of importance": RowForm(is_ordered=True),
    "W4A16 with its lm_head, without k and gate": RowForm(unquantized=("k_proj", "gate_proj")),
    "W8A16": RowForm(bits=8, group=64),
    "W4A8 in bytes": RowForm("int-quantized", has_int8_inputs=True),
    "W8A8 with zero points": RowForm("int-quantized", bits=8, group=-1, is_symmetric=False, has_int8_inputs=True),
    "MXFP4": RowForm(MX),
    "NVFP4": RowForm(NV, group=16),
    "NVFP4 of ModelOpt": RowForm(NV, group=16, tool="modelopt"),
    "MXFP4 of Quark": RowForm(MX, tool="quark"),
    "of several kinds": RowForm(others={"down_proj": RowForm(bits=8, group=128), "o_proj": RowForm(MX)}),
}


@pytest.mark.alike(max_cases=7)
@pytest.mark.parametrize("name", FORMS)
def test_the_logits_are_those_of_the_stored_numbers(name: str, source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS[name])
    assert len(values) >= 10
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < LIMIT


@pytest.mark.parametrize("name", ["W4A16 in order of importance", "W8A16", "NVFP4"])
def test_inputs_are_divided_over_ranks(name: str, source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS[name])
    assert distance(logits_of(tmp_path / "model", tp=2), reference_of(source, values)) < LIMIT


@pytest.mark.parametrize("name", ["W4A16", "MXFP4"])
def test_fused_layers_and_experts_are_read_from_their_codes(name: str, tmp_path: Path) -> None:
    experts = EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 64}
    for number, (architecture, sizes) in enumerate(
        [("Phi3ForCausalLM", SIZES | {"initializer_range": 0.05, "pad_token_id": 0}), ("Qwen2MoeForCausalLM", experts)]
    ):
        folder = tmp_path / str(number)
        tiny = make_tiny(folder / "source", architecture, **sizes)
        values = quantize_checkpoint(tiny, folder / "model", FORMS[name])
        unquantized = Path(shutil.copytree(tiny, folder / "plain"))
        save_file(load_file(tiny / WEIGHTS) | values, unquantized / WEIGHTS, metadata={"format": "pt"})
        assert distance(logits_of(folder / "model"), reference_of(unquantized, {})) < LIMIT


def test_what_model_optimizer_says_in_a_file_of_its_own_is_read(source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS["NVFP4 of ModelOpt"])
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    given = config.pop("quantization_config")
    del given["quant_method"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": given})
    )
    found = logits_of(tmp_path / "model", model_format="modelopt")
    assert distance(found, reference_of(source, values)) < LIMIT


def test_float8_of_model_optimizer_is_read(source: Path, tmp_path: Path) -> None:
    form = Form("compressed-tensors", FLOAT8, "tensor", scale_shape="scalar", static_activations=True)
    values = scale_checkpoint(source, tmp_path / "model", form)
    path = tmp_path / "model" / "config.json"
    given = {"quant_method": "modelopt", "quant_algo": "FP8"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": given}))
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < 0.006


def test_model_optimizer_stores_some_layers_in_float8_and_some_in_4_bits(source: Path, tmp_path: Path) -> None:
    form = Form("compressed-tensors", FLOAT8, "tensor", scale_shape="scalar", static_activations=True)
    values = scale_checkpoint(source, tmp_path / "model", form)
    unquantized, tensors = load_file(source / WEIGHTS), load_file(tmp_path / "model" / WEIGHTS)
    layers: dict[str, dict[str, Any]] = {name.removesuffix(".weight"): {"quant_algo": "FP8"} for name in values}
    for layer in [layer for layer in layers if ".mlp." in layer]:
        stored, values[f"{layer}.weight"] = quantize_layer(unquantized[f"{layer}.weight"], FORMS["NVFP4 of ModelOpt"])
        tensors |= {f"{layer}.{name}": tensor for name, tensor in stored.items()}
        layers[layer] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    save_file(tensors, tmp_path / "model" / WEIGHTS)
    path = tmp_path / "model" / "config.json"
    given = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": given}))
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < LIMIT


BNB, MLX = {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"group_size": 64, "bits": 4}
BLOCKS: dict[str, tuple[dict[str, Encoder], dict[str, Any], float]] = {
    "NF4": ({"_proj": four_bits("nf4")}, BNB, 1e-4),
    "NF4 with quantized scales": ({"_proj": four_bits("nf4", is_nested=True)}, BNB, 1e-4),
    "FP4 of some layers": ({"up_proj": four_bits("fp4"), "v_proj": four_bits("fp4")}, BNB, 1e-4),
    "LLM.int8()": ({"_proj": int8}, BNB, LIMIT),
    "MLX": ({"_proj": affine(4), "lm_head": affine(4), "embed_tokens": affine(4)}, MLX, LIMIT),
    "MLX, 3 and 6 bits": ({"down_proj": affine(6, 128), "_proj": affine(3, 32)}, MLX, LIMIT),
    "MLX, 8 bits": ({"_proj": affine(8, 32), "lm_head": affine(5)}, MLX, LIMIT),
}


@pytest.mark.alike(max_cases=5)
@pytest.mark.parametrize("name", BLOCKS)
def test_weights_in_blocks_are_the_stored_numbers(name: str, source: Path, tmp_path: Path) -> None:
    encoders, given, limit = BLOCKS[name]
    values = quantize_blocks(source, tmp_path / "model", encoders, given)
    assert len(values) >= 4
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < limit


@pytest.mark.parametrize("name", ["NF4", "MLX"])
def test_weights_in_blocks_are_divided_over_ranks(name: str, source: Path, tmp_path: Path) -> None:
    encoders, given, limit = BLOCKS[name]
    values = quantize_blocks(source, tmp_path / "model", encoders, given)
    assert distance(logits_of(tmp_path / "model", tp=2), reference_of(source, values)) < limit
