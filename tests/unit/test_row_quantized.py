"""Matrices stored output by output: the engine reads the numbers they stand for, or says why not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.checkpoint import describe
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.manifest import Expression, concat, rows_of
from lmdeploy.turbomind.row_quantized import row_schemes, with_row_quantized
from tests.kernels import device
from tests.support.block_quantized import Encoder, affine, four_bits
from tests.support.block_quantized import quantize_checkpoint as quantize_blocks
from tests.support.quantized_checkpoints import Change, damage
from tests.support.row_quantized import RowForm, quantize_checkpoint, quantize_layer
from tests.support.tiny_models import make_tiny_llama
from tests.unit.test_quantized_weights import APART, SHAPES, A, B, read_tensor, values_of, write_manifest

MX, NV = "mxfp4-pack-quantized", "nvfp4-pack-quantized"
FORMS = {
    "W4A16": RowForm(),
    "W4A16 with zero points": RowForm(group=128, is_symmetric=False),
    "W4A16, whole rows": RowForm(group=-1),
    "W4A16, whole rows with zero points": RowForm(group=-1, is_symmetric=False),
    "W4A16 in order of importance": RowForm(is_ordered=True),
    "W8A16": RowForm(bits=8, group=64),
    "W8A16, whole rows": RowForm(bits=8, group=-1),
    "W8A16 with zero points": RowForm(bits=8, is_symmetric=False),
    "W4A8 packed": RowForm(has_int8_inputs=True),
    "W4A8 in bytes": RowForm("int-quantized", has_int8_inputs=True),
    "W4A8 in bytes, whole rows": RowForm("int-quantized", group=-1, has_int8_inputs=True),
    "W8A8 in groups": RowForm("int-quantized", bits=8, has_int8_inputs=True),
    "W8A8 with zero points": RowForm("int-quantized", bits=8, group=-1, is_symmetric=False, has_int8_inputs=True),
    "MXFP4": RowForm(MX),
    "MXFP4 of Quark": RowForm(MX, tool="quark"),
    "NVFP4": RowForm(NV, group=16),
    "NVFP4 of ModelOpt": RowForm(NV, group=16, tool="modelopt"),
}
EXPRESSIONS: dict[str, Expression] = {
    "one": A,
    "rows": concat(rows_of(A, 5, 41), rows_of(B, 16, 24)),
    "taken apart": APART,
    "inputs cut": rows_of(A, 8, 72, dim=1),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("form", FORMS)
def test_the_engine_reads_and_multiplies_the_numbers_that_codes_stand_for(form: str, name: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    tensors, numbers = {}, {}
    for layer, shape in SHAPES.items():
        stored, numbers[f"{layer}.weight"] = quantize_layer(torch.randn(shape) + 0.1, FORMS[form])
        tensors |= {f"{layer}.{part}": tensor for part, tensor in stored.items()}
    schemes = row_schemes({"quantization_config": FORMS[form].config()})
    write_manifest(tmp_path, tensors, lambda index: with_row_quantized({"x": EXPRESSIONS[name]}, schemes, index))
    weight = values_of(EXPRESSIONS[name], numbers)
    # Half scales hold all of these but NVFP4's, which are products.
    limit = 2.0**-11 if FORMS[form].stored == NV else 0.0
    assert ((read_tensor(tmp_path, weight.shape) - weight).abs() <= limit * weight.abs()).all()
    # Numbers of few bits are rounded to themselves: the sum of two inputs, each the whole of its group.
    x = torch.zeros(3, weight.shape[1])
    x[0, 3], x[1, -1], x[2, 3], x[2, -1] = 1, 2, 1, 2
    found = device.multiply_quantized(tmp_path, "x", list(weight.shape), x)
    assert (found is not None) == (name != "inputs cut")
    if found is not None and not FORMS[form].is_ordered:  # which mixes the two inputs' groups
        exact, magnitude = x.double() @ weight.double().T, x.double() @ weight.double().abs().T
        assert ((found.double() - exact).abs() <= (limit + 4 * 2.0**-24) * magnitude).all()


# ---- what is refused ----


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4}
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", num_hidden_layers=1, **sizes)


Q = "model.layers.0.self_attn.q_proj"
INSTEAD = r"serve the model it was made from with --weight-bits 4 or 8, or make that smaller with `lmdeploy lite`"


def group(*path: str, value: object) -> Change:
    def change(config: dict, _: object) -> None:
        group = config["config_groups"]["group_0"]
        for key in path[:-1]:
            group = group[key]
        group[path[-1]] = value

    return change


def setting(name: str, value: object) -> Change:
    return lambda config, _: config.update({name: value})


UNSUPPORTED: dict[str, tuple[str, Change, str]] = {
    "3 bits": ("W4A16", group("weights", "num_bits", value=3), "weights.num_bits 3 are not supported; supported: 4, 8"),
    "one scale": ("W4A16", group("weights", "strategy", value="tensor"), "weights.strategy 'tensor'"),
    "odd groups": ("W4A16", group("weights", "group_size", value=12), "must be a positive multiple of 8, got 12"),
    "float codes": ("W4A16", group("weights", "type", value="float"), "weights.type 'float'"),
    "marlin": ("W4A16", group("format", value="marlin-24"), "format 'marlin-24' .* mxfp4-pack-quantized"),
    "mxfp6": ("MXFP4", group("format", value="mxfp6-pack-quantized"), "format 'mxfp6-pack-quantized'"),
    "large groups": (
        "MXFP4",
        group("weights", "group_size", value=64),
        "group_size 64 are not supported; supported: 32",
    ),
    "outputs": ("W4A16", group("output_activations", value={"num_bits": 8}), "output_activations is not supported"),
    "AWQ of ModelOpt": ("NVFP4 of ModelOpt", setting("quant_algo", "W4A16_AWQ"), "quant_algo 'W4A16_AWQ'"),
    "mixed of ModelOpt": (
        "NVFP4 of ModelOpt",
        lambda config, _: config.update(
            quant_algo="MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "INT4_AWQ"}}
        ),
        "quant_algo 'INT4_AWQ'",
    ),
    "mixed of Quark": ("MXFP4 of Quark", setting("layer_quant_config", {"a": {}}), "layer_quant_config"),
    "int4 of Quark": (
        "MXFP4 of Quark",
        setting("global_quant_config", {"weight": {"dtype": "int4"}}),
        "quark weights with dtype 'int4' are not supported; supported: fp4",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_forms_are_refused_by_name_with_what_to_do(name: str, source: Path, tmp_path: Path) -> None:
    form, change, message = UNSUPPORTED[name]
    quantize_checkpoint(source, tmp_path / "model", FORMS[form])
    with pytest.raises(UnsupportedModelError, match=rf"{message}.*{INSTEAD}"):
        describe(damage(tmp_path / "model", change), "model")


def drop(name: str) -> Change:
    return lambda _, tensors: tensors.pop(f"{Q}.{name}")


def replace(name: str, tensor: torch.Tensor) -> Change:
    return lambda _, tensors: tensors.update({f"{Q}.{name}": tensor})


BROKEN: dict[str, tuple[str, Change, str]] = {
    "no scales": ("W4A16", drop("weight_scale"), rf"{Q}.weight_scale is missing"),
    "no zero points": ("W8A16 with zero points", drop("weight_zero_point"), "weight_zero_point is missing"),
    "no global scale": ("NVFP4", drop("weight_global_scale"), "weight_global_scale is missing"),
    "short codes": (
        "W4A16",
        replace("weight_packed", torch.zeros(128, 8, dtype=torch.int32)),
        r"weight_packed has shape \[128, 8\], expected \[128, 16\]",
    ),
    "scales of bytes": (
        "NVFP4",
        replace("weight_scale", torch.zeros(128, 8, dtype=torch.uint8)),
        "weight_scale has type U8, expected one of F8_E4M3",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_checkpoint_is_named(name: str, source: Path, tmp_path: Path) -> None:
    form, change, message = BROKEN[name]
    quantize_checkpoint(source, tmp_path / "model", FORMS[form])
    with pytest.raises(CheckpointError, match=message):
        describe(damage(tmp_path / "model", change), "model")


STATE = f"{Q}.weight.quant_state.bitsandbytes__nf4"
NF4, NESTED, MLX = four_bits("nf4"), four_bits("nf4", is_nested=True), affine(4)


def with_state(**changes: object) -> Change:
    """Change what bitsandbytes says of a layer."""

    def change(_: object, tensors: dict[str, torch.Tensor]) -> None:
        state = json.loads(tensors[STATE].numpy().tobytes()) | changes
        tensors[STATE] = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)

    return change


BROKEN_BLOCKS: dict[str, tuple[Encoder, Change, str]] = {
    "no scales": (NF4, drop("weight.absmax"), rf"{Q}.weight.absmax is missing"),
    "no scales of scales": (NESTED, drop("weight.nested_absmax"), "weight.nested_absmax is missing"),
    "another shape": (NF4, with_state(shape=[64, 256]), r"is of shape \[64, 256\], expected \[128, 128\]"),
    "another type": (NF4, with_state(quant_type="nf3"), "quant_type must be nf4 or fp4, got 'nf3'"),
    "no block": (NF4, with_state(blocksize=0), "blocksize must be a whole number >= 1"),
    "no JSON": (
        NF4,
        replace("weight.quant_state.bitsandbytes__nf4", torch.full((4,), 255, dtype=torch.uint8)),
        "blocksize must be a whole number >= 1 and nested_offset a number, got {}",
    ),
    "other storage": (
        NF4,
        replace("weight", torch.zeros(4096, 1, dtype=torch.bfloat16)),
        r"weight has shape \[4096, 1\], expected \[8192, 1\]",
    ),
    "no biases": (MLX, drop("biases"), rf"{Q}.biases is missing"),
    "odd groups": (
        MLX,
        replace("scales", torch.zeros(128, 3)),
        "16 words and 3 scales a row are no affine codes of 128",
    ),
}


@pytest.mark.parametrize("name", BROKEN_BLOCKS)
def test_what_is_wrong_with_weights_in_blocks_is_named(name: str, source: Path, tmp_path: Path) -> None:
    encoder, change, message = BROKEN_BLOCKS[name]
    given = {"bits": 4, "group_size": 64} if encoder is MLX else {"quant_method": "bitsandbytes"}
    quantize_blocks(source, tmp_path / "model", {"_proj": encoder}, given)
    with pytest.raises(CheckpointError, match=message):
        describe(damage(tmp_path / "model", change), "model")


UNREADABLE: dict[str, tuple[str, Change, str]] = {
    "scale without a number": (
        "MXFP4",
        replace("weight_scale", torch.full((128, 4), 255, dtype=torch.uint8)),
        "scales must be finite halves, found nan in group 0, output 0",
    ),
    "global scale of zero": (
        "NVFP4",
        replace("weight_global_scale", torch.zeros(1)),
        "must be a positive number, got 0",
    ),
    "unknown group": (
        "W4A16",
        replace("weight_g_idx", torch.full((128,), 4, dtype=torch.int32)),
        r"g_idx must be in 0\.\.3, got 4 for input 0",
    ),
    "code of 8 bits": (
        "W4A8 in bytes",
        replace("weight", torch.full((128, 128), 9, dtype=torch.int8)),
        r"codes must be in -8\.\.7, found 9",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_numbers_that_make_no_sense_are_named(name: str, source: Path, tmp_path: Path) -> None:
    form, change, message = UNREADABLE[name]
    quantize_checkpoint(source, tmp_path / "model", FORMS[form])
    directory = resolve(damage(tmp_path / "model", change), backend="turbomind")
    with pytest.raises(ValueError, match=message):
        device.read_tensor(directory.path, "layers.0.attention.qkv.weight", [256, 128])
