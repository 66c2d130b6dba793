"""Weights with scales, 8 bits and MXFP4: the numbers that codes stand for, and what is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.manifest import Expression, Load, Manifest, Mxfp4, concat, rows_of
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.turbomind.scaled import ScaledWeights, with_scales
from tests.kernels import device
from tests.support import published
from tests.support.expert_models import GPT_OSS
from tests.support.quantized_checkpoints import Change, copy_files, damage, save_quantized
from tests.support.scaled_checkpoints import FLOAT8, Form, quantize, quantize_checkpoint, stored_scales
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.unit.test_quantized_weights import APART, SHAPES, A, B, read_tensor, values_of, write_manifest

FORMS = {
    "blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv"),
    "small blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(20, 40)),
    "one scale": Form("fp8", FLOAT8, "tensor", "weight_scale", scale_shape="scalar"),
    "one scale inverse": Form("fp8", FLOAT8, "tensor", "weight_scale_inv", scale_shape="scalar"),
    "float8": Form("compressed-tensors", FLOAT8, "channel", scales=torch.bfloat16),
    "int8": Form("compressed-tensors", torch.int8, "channel", scales=torch.float16),
    "int8, one scale": Form("compressed-tensors", torch.int8, "tensor"),
    "flat": Form("smooth_quant", torch.int8, "channel", "scale", "flat"),
}
EXPRESSIONS: dict[str, Expression] = {
    "one": A,
    "joined": concat(A, B, A),
    "rows": concat(rows_of(A, 5, 41), rows_of(B, 16, 24)),
    "taken apart": APART,
    "inputs cut": rows_of(A, 8, 72, dim=1),
}


def write_quantized(directory: Path, form: Form, expression: Expression) -> dict[str, torch.Tensor]:
    """Write two layers and a manifest with one tensor, ``x``; return the numbers the codes stand for."""
    torch.manual_seed(7)
    tensors, numbers = {}, {}
    for name, shape in SHAPES.items():
        quantized, scales, numbers[f"{name}.weight"] = quantize(torch.randn(shape), form)
        tensors |= {f"{name}.weight": quantized, f"{name}.{form.scale_name}": stored_scales(scales, form)}
    weights = ScaledWeights.from_config({"quantization_config": form.config()})
    assert weights is not None
    write_manifest(directory, tensors, lambda index: with_scales({"x": expression}, weights, index))
    return numbers


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_the_engine_reads_and_multiplies_the_numbers_that_codes_stand_for(form: str, name: str, tmp_path: Path) -> None:
    numbers = write_quantized(tmp_path, FORMS[form], EXPRESSIONS[name])
    weight = values_of(EXPRESSIONS[name], numbers)
    assert torch.equal(read_tensor(tmp_path, weight.shape), weight)
    # Numbers of few bits are rounded to themselves: the sum of two inputs, each the whole of its group.
    x = torch.zeros(3, weight.shape[1])
    x[0, 3], x[1, -1], x[2, 3], x[2, -1] = 1, 2, 1, 2
    found = device.multiply_quantized(tmp_path, "x", list(weight.shape), x)
    assert (found is not None) == (name != "inputs cut")
    if found is not None:
        expected = x.double() @ weight.double().T
        assert ((found.double() - expected).abs() <= 4 * 2.0**-24 * (x.double() @ weight.double().abs().T)).all()


# ---- what is refused ----


@pytest.fixture(scope="module")
def unquantized_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", num_hidden_layers=1)


Q = "model.layers.0.self_attn.q_proj"


def put(*path: str, value: Any) -> Change:
    """Return a change that sets a field of quantization_config, or of an object in it."""

    def change(config: dict[str, Any], _: object) -> None:
        for key in path[:-1]:
            config = config[key]
        config[path[-1]] = value

    return change


def group(*path: str, value: Any) -> Change:
    return put("config_groups", "group_0", *path, value=value)


def change_scale(form: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    name = f"{Q}.{FORMS[form].scale_name}"
    return lambda _, tensors: tensors.update({name: change(tensors[name])})


def drop(name: str) -> Change:
    return lambda _, tensors: tensors.pop(name)


def retype(dtype: torch.dtype) -> Change:
    name = f"{Q}.weight"
    return lambda _, tensors: tensors.update({name: tensors[name].float().to(dtype)})


UNSUPPORTED: dict[str, tuple[str, Change, str]] = {
    "e5m2": ("blocks", put("fmt", value="e5m2"), "fp8 weights with fmt 'e5m2' are not supported; supported: e4m3"),
    "odd block": (
        "blocks",
        put("weight_block_size", value=[128, 12]),
        "of weight_block_size must be a multiple of 8",
    ),
    "one size": ("blocks", put("weight_block_size", value=[128]), r"must be two positive integers, got \[128\]"),
    "fp4 experts": ("blocks", put("expert_dtype", value="fp4"), "fp8 weights with expert_dtype 'fp4'"),
    "smooth_quant e5m2": ("flat", put("quant_dtype", value="float8_e5m2"), "smooth_quant weights with quant_dtype"),
    "packed": ("int8", put("format", value="marlin-24"), "with format 'marlin-24' are not supported"),
    "packed group": ("int8", group("format", value="mxfp6-pack-quantized"), "with format 'mxfp6-pack-quantized'"),
    "3 bits": ("int8", group("weights", "num_bits", value=3), "with weights.num_bits 3 are not supported"),
    "groups": (
        "float8",
        group("weights", "strategy", value="group"),
        "weights.strategy 'group' .* supported: tensor",
    ),
    "int8 blocks": ("int8", group("weights", "strategy", value="block"), "weights.strategy block and type 'int'"),
    "asymmetric": ("float8", group("weights", "symmetric", value=False), "with weights.symmetric False"),
    "asymmetric x": ("int8", group("input_activations", "symmetric", value=False), "input_activations.symmetric False"),
    "4-bit x": ("int8", group("input_activations", "num_bits", value=4), "with input_activations.num_bits 4"),
    "outputs": ("int8", group("output_activations", value={"num_bits": 8}), "output_activations is not supported"),
    "sparse": (
        "int8",
        put("sparsity_config", value={"format": "sparse-24-bitmask"}),
        "format 'sparse-24",
    ),
    "rotated": (
        "int8",
        put("transform_config", value={"config_groups": {"R1": {}}}),
        "compressed-tensors weights with transform_config .* not known here",
    ),
    "several algorithms": ("blocks", put("moe_quant_algo", value="NVFP4"), "fp8 weights with moe_quant_algo 'NVFP4'"),
    "nothing said": ("int8", put("config_groups", value={}), "config_groups must describe the weights"),
}
BROKEN: dict[str, tuple[str, Change, str]] = {
    "no scale": ("float8", drop(f"{Q}.weight_scale"), f"tensor {Q}.weight_scale is missing"),
    "no block scale": ("blocks", drop(f"{Q}.weight_scale_inv"), f"tensor {Q}.weight_scale_inv is missing"),
    "too few scales": (
        "float8",
        change_scale("float8", lambda scale: scale[:-1].clone()),
        rf"tensor {Q}.weight_scale has shape \[31, 1\], expected \[32, 1\]",
    ),
    "other blocks": (
        "small blocks",
        put("weight_block_size", value=[8, 8]),
        rf"tensor {Q}.weight_scale_inv has shape \[2, 1\], expected \[4, 4\]",
    ),
    "whole scales": (
        "float8",
        change_scale("float8", lambda scale: scale.int()),
        f"tensor {Q}.weight_scale has type I32, expected one of F32, BF16, F16",
    ),
    "codes of another type": (
        "float8",
        retype(torch.float8_e5m2),
        f"tensor {Q}.weight has type F8_E5M2, expected one of",
    ),
    "codes cut off": (
        "int8",
        lambda _, tensors: tensors.update({f"{Q}.weight": tensors[f"{Q}.weight"][:-1].clone()}),
        rf"tensor {Q}.weight has shape \[31, 32\], expected \[32, 32\]",
    ),
}


def damaged(source: Path, target: Path, form: str, change: Change) -> Path:
    quantize_checkpoint(source, target, FORMS[form])
    return damage(target, change)


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_the_engine_cannot_read_is_refused_by_name(case: str, unquantized_model: Path, tmp_path: Path) -> None:
    form, change, reason = UNSUPPORTED[case]
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(damaged(unquantized_model, tmp_path / "model", form, change), backend="turbomind")


EIGHT = {"dynamic": False, "num_bits": 8, "type": "float"}
# Settings as published, of checkpoints stored as one of FORMS; each with the tensors that such a layer has besides.
PUBLISHED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "Qwen3-32B-FP8-Static-PerTensor": (
        "one scale",
        {
            "config_groups": {"group_0": {"input_activations": EIGHT, "weights": EIGHT}},
            "ignore": ["lm_head"],
            "quant_algo": "FP8",
            "kv_cache_scheme": "FP8",
            "producer": {"name": "modelopt", "version": "0.31.0"},
        },
        ("input_scale", "k_scale"),
    ),
    "Devstral-Small-2": (
        "one scale inverse",
        {
            "activation_scheme": "static",
            "dequantize": False,
            "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
            "quant_method": "fp8",
            "weight_block_size": None,
        },
        ("activation_scale",),
    ),
    "Llama-3.1-405B-FP8": (
        "float8",
        {
            "activation_scale_ub": 1200.0,
            "modules_to_not_convert": ["model.layers.0.mlp.down_proj", "lm_head"],
            "quant_method": "fbgemm_fp8",
        },
        ("input_scale_ub",),
    ),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_settings_are_read(case: str, unquantized_model: Path, tmp_path: Path) -> None:
    form, settings, besides = PUBLISHED[case]
    values = quantize_checkpoint(unquantized_model, tmp_path / "model", FORMS[form])

    def publish(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        config.clear()
        config.update(settings)
        tensors.update({f"{Q}.{name}": torch.tensor(0.5) for name in besides})

    directory = resolve(damage(tmp_path / "model", publish), backend="turbomind").path
    up = values["model.layers.0.mlp.down_proj.weight"]
    assert torch.equal(device.read_tensor(directory, "layers.0.mlp.down.weight", list(up.shape)), up)


def test_scales_of_the_cache_alone_leave_the_weights_as_they_are(unquantized_model: Path, tmp_path: Path) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    cache = {
        "quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": [],
        "kv_cache_scheme": scheme, "quantization_status": "frozen",
    }  # fmt: skip
    tensors = copy_files(unquantized_model, tmp_path / "model")
    attention = "model.layers.0.self_attn"
    scales = {f"{attention}.{name}_scale": torch.tensor([0.5]) for name in "kv"}
    save_quantized(unquantized_model, tmp_path / "model", tensors | scales, cache)
    paths = [resolve(model, backend="turbomind").path for model in (tmp_path / "model", unquantized_model)]
    read = [device.read_tensor(path, "layers.0.attention.qkv.weight", [64, 32]) for path in paths]
    assert torch.equal(*read)


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_checkpoint_is_refused_by_reason(case: str, unquantized_model: Path, tmp_path: Path) -> None:
    form, change, reason = BROKEN[case]
    with pytest.raises(CheckpointError, match=reason):
        resolve(damaged(unquantized_model, tmp_path / "model", form, change))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("form", ["small blocks", "one scale", "float8", "int8"])
def test_a_scale_that_is_not_finite_is_refused_when_it_is_read(
    form: str, value: float, unquantized_model: Path, tmp_path: Path
) -> None:
    spoil = change_scale(form, lambda scale: torch.full_like(scale, value))
    directory = resolve(damaged(unquantized_model, tmp_path / "model", form, spoil)).path
    reason = "tensor layers.0.attention.qkv.weight: scales must be finite, found .* for the block of output 0, input 0"
    with pytest.raises(ValueError, match=reason):
        device.read_tensor(directory, "layers.0.attention.qkv.weight", [64, 32])


def test_scales_do_not_say_what_type_the_other_weights_have(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", num_hidden_layers=1, dtype="bfloat16")
    quantize_checkpoint(source, tmp_path / "model", FORMS["blocks"])
    assert resolve(tmp_path / "model").spec.dtype == "bfloat16"


MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def mxfp4_write_manifest(directory: Path, quantized: torch.Tensor, scales: torch.Tensor) -> None:
    save_file({"codes": quantized, "scales": scales}, directory / "model.safetensors")
    load = Mxfp4((Load("codes", tuple(quantized.shape), ("U8",)), Load("scales", tuple(scales.shape), ("U8",))))
    manifest = Manifest.build({"x": load}, read_checkpoint(directory))
    (directory / "manifest.json").write_text(manifest.to_json())


def test_every_code_with_every_scale(tmp_path: Path) -> None:
    quantized = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(256, 16, 16).contiguous()
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16).contiguous()
    mxfp4_write_manifest(tmp_path, quantized, scales)
    found = device.read_tensor(tmp_path, "x", [256, 512])
    lut = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)], dtype=torch.float64)
    values = torch.stack([lut[quantized.long() & 15], lut[quantized.long() >> 4]], -1).view(256, 512)
    exact = values * 2.0 ** (torch.arange(256, dtype=torch.float64)[:, None] - 127)
    assert torch.equal(found[:255], exact[:255].to(torch.bfloat16).float())
    assert found[255].isnan().all()


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    mxfp4_write_manifest(tmp_path, torch.zeros(2, 3, 16, dtype=torch.uint8), torch.zeros(3, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="mxfp4 needs U8 codes"):
        device.read_tensor(tmp_path, "x", [3, 64])


def test_missing_scales_are_named(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "GptOssForCausalLM", **GPT_OSS)
    published.mxfp4(directory)
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.experts\.down_proj_scales is missing"):
        resolve(directory)


def test_another_method_is_refused(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "GptOssForCausalLM", **GPT_OSS)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(ValueError, match=r"method 'hqq' are not supported; supported: .*mxfp4"):
        resolve(directory, backend="turbomind")
