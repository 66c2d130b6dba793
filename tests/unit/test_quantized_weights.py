"""Matrices stored as codes: the engine reads the numbers they stand for, multiplies with the codes, or says why not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.manifest import (
    Expression,
    Load,
    Manifest,
    Mxfp4,
    concat,
    find_problems,
    permute,
    reshape,
    rows_of,
    transpose,
)
from lmdeploy.turbomind.quantized import Quantization, weight_format, with_quantized
from lmdeploy.turbomind.row_quantized import row_schemes, with_row_quantized
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex, read_checkpoint
from lmdeploy.turbomind.scaled import ScaledWeights, with_scales
from tests.kernels import device
from tests.kernels.reference import round_activations
from tests.support import published
from tests.support.block_quantized import Blocks, affine, four_bits
from tests.support.expert_models import GPT_OSS
from tests.support.quantized_checkpoints import (
    AWQ_ORDER,
    Change,
    Scheme,
    copy_files,
    damage,
    pack,
    quantize,
    quantize_checkpoint,
    save_quantized,
)
from tests.support.row_quantized import RowForm
from tests.support.scaled_checkpoints import FLOAT8, Form
from tests.support.tiny_models import make_tiny, make_tiny_llama

MX, NV = "mxfp4-pack-quantized", "nvfp4-pack-quantized"
SCHEMES = {
    "awq 128": Scheme(group_size=128),
    "awq 64": Scheme(group_size=64),
    "awq 32": Scheme(group_size=32),
    "awq 8": Scheme(group_size=8),
    "awq whole row": Scheme(group_size=-1),
    "awq symmetric": Scheme(sym=True),
    "awq bfloat16 scales": Scheme(scales=torch.bfloat16),
    "gptq": Scheme("gptq", group_size=128),
    "gptq whole row": Scheme("gptq", group_size=-1),
    "gptq symmetric": Scheme("gptq", sym=True),
    "gptq second format": Scheme("gptq", checkpoint_format="gptq_v2"),
    "gptq last group short": Scheme("gptq", group_size=48),
    "gptq 8 bits": Scheme("gptq", bits=8, group_size=128),
    "gptq 8 bits second format": Scheme("gptq", bits=8, checkpoint_format="gptq_v2"),
    "gptq 8 bits symmetric": Scheme("gptq", bits=8, sym=True),
    "gptq ordered": Scheme("gptq", desc_act=True),
    "gptq ordered 8 bits": Scheme("gptq", bits=8, group_size=48, desc_act=True, checkpoint_format="gptq_v2"),
}
SCALED = {
    "blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv"),
    "small blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(20, 40)),
    "one scale": Form("fp8", FLOAT8, "tensor", "weight_scale", scale_shape="scalar"),
    "one scale inverse": Form("fp8", FLOAT8, "tensor", "weight_scale_inv", scale_shape="scalar"),
    "float8": Form("compressed-tensors", FLOAT8, "channel", scales=torch.bfloat16),
    "int8": Form("compressed-tensors", torch.int8, "channel", scales=torch.float16),
    "int8, one scale": Form("compressed-tensors", torch.int8, "tensor"),
    "flat": Form("smooth_quant", torch.int8, "channel", "scale", "flat"),
}
BY_OUTPUT = {
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
FORMS: dict[str, Any] = SCHEMES | SCALED | BY_OUTPUT

SHAPES = {"a": (48, 256), "b": (24, 256)}
A, B = (Load(f"{name}.weight", shape) for name, shape in SHAPES.items())
# Heads of two kinds that are side by side, taken apart: [4 pairs, 2 kinds, 6 rows, in].
APART = reshape(permute(reshape(A, 4, 2, 6, 256), 1, 0, 2, 3), 48, 256)
EXPRESSIONS: dict[str, Expression] = {
    "one": A,
    "joined": concat(A, B, A),
    "rows": concat(rows_of(A, 5, 41), rows_of(B, 16, 24)),
    "taken apart": APART,
    "joined, then cut": rows_of(concat(A, B), 40, 60),
    "transposed": transpose(A),
    "inputs cut": rows_of(A, 8, 72, dim=1),
}
STAYS_CODES = ("one", "joined", "rows", "taken apart")
OF_ALL = (*STAYS_CODES, "inputs cut")


def values_of(expression: Expression, numbers: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return torch's value of an expression."""
    if isinstance(expression, Load):
        return numbers[expression.name]
    value = torch.cat([values_of(argument, numbers) for argument in expression.args])
    match type(expression).__name__:
        case "Slice":
            return value.narrow(expression.dim, expression.begin, expression.end - expression.begin)
        case "Permute":
            return value.permute(expression.dims)
        case "Reshape":
            return value.reshape(expression.shape)
    return value


def write_quantized(directory: Path, form: Any, expression: Expression) -> dict[str, torch.Tensor]:
    """Write two layers as codes and a manifest with one tensor, ``x``; return the numbers the codes stand for."""
    torch.manual_seed(7)
    tensors, numbers = {}, {}
    for name, shape in SHAPES.items():
        stored, numbers[f"{name}.weight"] = form.encode(torch.randn(shape) + 0.1)
        tensors |= {f"{name}.{part}": tensor for part, tensor in stored.items()}
    raw = {"quantization_config": form.config()}

    def engine_tensors(index: SafetensorsIndex) -> dict[str, Expression]:
        quantization, scaled = Quantization.from_config(raw), ScaledWeights.from_config(raw)
        if quantization is not None:
            return with_quantized({"x": expression}, quantization, index)
        assert scaled is not None
        return with_scales(with_row_quantized({"x": expression}, row_schemes(raw), index), scaled, index)

    write_manifest(directory, tensors, engine_tensors)
    return numbers


def write_manifest(
    directory: Path,
    tensors: dict[str, torch.Tensor],
    engine_tensors: Callable[[SafetensorsIndex], dict[str, Expression]],
) -> None:
    """Write tensors of a checkpoint, and a manifest of what the engine makes of them."""
    save_file(tensors, directory / "model.safetensors")
    index = read_checkpoint(directory)
    engine = engine_tensors(index)
    assert not find_problems(engine, index)
    (directory / "manifest.json").write_text(Manifest.build(engine, index).to_json())


@pytest.mark.parametrize(
    ("form", "name"), [(form, name) for form in FORMS for name in EXPRESSIONS if form in SCHEMES or name in OF_ALL]
)
def test_the_engine_reads_and_multiplies_the_numbers_that_codes_stand_for(form: str, name: str, tmp_path: Path) -> None:
    stored = FORMS[form]
    weight = values_of(EXPRESSIONS[name], write_quantized(tmp_path, stored, EXPRESSIONS[name]))
    # Half scales hold all of these but NVFP4's, which are products.
    limit = 2.0**-11 if getattr(stored, "stored", "") == NV else 0.0
    assert ((device.read_tensor(tmp_path, "x", list(weight.shape)) - weight).abs() <= limit * weight.abs()).all()
    # Numbers of few bits are rounded to themselves: the sum of two inputs, each the whole of its group.
    x = torch.zeros(3, weight.shape[1])
    x[0, 3], x[1, -1], x[2, 3], x[2, -1] = 1, 2, 1, 2
    limit += 4 * 2.0**-24
    if isinstance(stored, Scheme):
        x, limit = torch.randn(3, weight.shape[1]), 1e-5
    found = device.multiply_quantized(tmp_path, "x", list(weight.shape), x)
    assert (found is not None) == (name in STAYS_CODES)
    if found is None or getattr(stored, "is_ordered", False):  # which mixes the two inputs' groups
        return
    if isinstance(stored, Scheme):
        if stored.desc_act:  # inputs are rounded with those of their group
            order = np.argsort(quantize(weight, stored).groups, kind="stable")
            x, weight = x[:, order], weight[:, order]
        x = round_activations(x, {-1: 128}.get(stored.group_size, stored.group_size))
    exact, magnitude = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    assert ((found.double() - exact).abs() <= limit * magnitude).all()


def test_the_encoder_of_these_tests_packs_as_published_checkpoints_do() -> None:
    assert pack(np.arange(8)[None], 4, 1, AWQ_ORDER) == 0x75316420  # the order AutoAWQ's kernels undo
    assert pack(np.arange(8)[:, None], 4, 0) == 0x76543210
    assert pack(np.arange(4)[:, None], 8, 0) == 0x03020100


# ---- what is refused ----


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4}
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", num_hidden_layers=1, **sizes)


def read_qkv(directory: Path) -> torch.Tensor:
    path = resolve(directory, backend="turbomind").path
    return device.read_tensor(path, "layers.0.attention.qkv.weight", [256, 128])


Q = "model.layers.0.self_attn.q_proj"
INSTEAD = r"serve the model it was made from with --weight-bits 4 or 8, or make that smaller with `lmdeploy lite`"


def put(path: str, value: object) -> Change:
    """Return a change that sets a field of quantization_config, or of an object in it."""

    def change(config: dict[str, Any], _: object) -> None:
        *objects, key = path.split(".")
        for name in objects:
            config = config[name]
        config[key] = value

    return change


def group(path: str, value: object) -> Change:
    return put(f"config_groups.group_0.{path}", value)


def drop(name: str) -> Change:
    return lambda _, tensors: tensors.pop(f"{Q}.{name}")


def swap(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda _, tensors: tensors.update({f"{Q}.{name}": change(tensors[f"{Q}.{name}"])})


def replaced(name: str, tensor: torch.Tensor) -> Change:
    return lambda _, tensors: tensors.update({f"{Q}.{name}": tensor})


def spoil(name: str, value: float) -> Change:
    return lambda _, tensors: tensors[f"{Q}.{name}"].view(-1)[3:4].fill_(value)


def damaged(source: Path, target: Path, form: Any, change: Change) -> Path:
    quantize_checkpoint(source, target, FORMS[form] if isinstance(form, str) else form)
    return damage(target, change)


# Form, change, reason.
Cases = dict[str, tuple[Any, Change, str]]
UNSUPPORTED: Cases = {
    "unknown": (Scheme(), put("quant_method", "aqlm"), "method 'aqlm' .* supported: awq .* bitsandbytes, mlx"),
    "gemv": (Scheme(), put("version", "gemv"), "awq weights of version 'gemv'"),
    "llm-awq": (Scheme(), put("backend", "llm-awq"), "awq weights of version 'llm-awq'"),
    "marlin": (Scheme("gptq"), put("checkpoint_format", "marlin"), "checkpoint_format 'marlin'"),
    "marlin, the old flag": (Scheme("gptq"), put("is_marlin_format", True), "checkpoint_format 'marlin'"),
    "dynamic": (
        Scheme("gptq"),
        put("dynamic", {"-:k_proj": {}, "+:.*up_proj": {"bits": 8}}),
        r"`dynamic` .*\+:.*up_proj",
    ),
    "layers of other bits": (
        Scheme("gptq"),
        put("extra_config", {"lm_head": {"bits": 16}, "model.layers.0.mlp.up_proj": {"bits": 2}}),
        "gptq weights with 2 bits in model.layers.0.mlp.up_proj",
    ),
    "floats": (Scheme("gptq"), put("data_type", "mx_fp"), "data_type 'mx_fp' and act_bits 16"),
    "rounded inputs": (Scheme("gptq"), put("act_bits", 8), "data_type 'int' and act_bits 8"),
    "an unknown field": (
        Scheme("gptq"),
        put("rotation", "hadamard"),
        "gptq weights with rotation 'hadamard' .* not known",
    ),
    "mlx": (
        Scheme(),
        lambda config, _: (config.clear(), config.update(bits=4, group_size=32, mode="mxfp4")),
        "mlx weights of mode 'mxfp4'",
    ),
    "auto-round's own": (
        Scheme("gptq"),
        lambda config, _: config.update(quant_method="auto-round", packing_format="auto_round:llm_compressor"),
        "method 'auto-round auto_round:llm_compressor'",
    ),
    "awq 8 bits": (Scheme(), put("bits", 8), "awq weights of 8 bits"),
    "gptq 2 bits": (Scheme("gptq"), put("bits", 2), "gptq weights of 2 bits"),
    "group of 12": (Scheme(), put("group_size", 12), "group_size must be -1 or a positive multiple of 8, got 12"),
    "no group": (Scheme(), put("group_size", None), "group_size must be -1 or a positive multiple of 8, got None"),
    "scales: e5m2": ("blocks", put("fmt", "e5m2"), "fp8 weights with fmt 'e5m2' are not supported; supported: e4m3"),
    "scales: odd block": (
        "blocks",
        put("weight_block_size", [128, 12]),
        "of weight_block_size must be a multiple of 8",
    ),
    "scales: one size": ("blocks", put("weight_block_size", [128]), r"must be two positive integers, got \[128\]"),
    "scales: fp4 experts": ("blocks", put("expert_dtype", "fp6"), "fp8 weights with expert_dtype 'fp6'"),
    "scales: smooth_quant e5m2": ("flat", put("quant_dtype", "float8_e5m2"), "smooth_quant weights with quant_dtype"),
    "scales: packed": ("int8", put("format", "marlin-24"), "with format 'marlin-24' are not supported"),
    "scales: packed group": ("int8", group("format", "mxfp6-pack-quantized"), "with format 'mxfp6-pack-quantized'"),
    "scales: 3 bits": ("int8", group("weights.num_bits", 3), "with weights.num_bits 3 are not supported"),
    "scales: groups": ("float8", group("weights.strategy", "group"), "weights.strategy 'group' .* supported: tensor"),
    "scales: int8 blocks": ("int8", group("weights.strategy", "block"), "weights.strategy block and type 'int'"),
    "scales: asymmetric": ("float8", group("weights.symmetric", False), "with weights.symmetric False"),
    "scales: asymmetric x": ("int8", group("input_activations.symmetric", False), "input_activations.symmetric False"),
    "scales: 4-bit x": ("int8", group("input_activations.num_bits", 4), "with input_activations.num_bits 4"),
    "scales: outputs": ("int8", group("output_activations", {"num_bits": 8}), "output_activations is not supported"),
    "scales: sparse": ("int8", put("sparsity_config", {"format": "sparse-24-bitmask"}), "format 'sparse-24"),
    "scales: rotated": (
        "int8",
        put("transform_config", {"config_groups": {"R1": {}}}),
        "compressed-tensors weights with transform_config .* not known here",
    ),
    "scales: several algorithms": ("blocks", put("moe_quant_algo", "NVFP4"), "weights with quant_algo None are not"),
    "scales: nothing said": ("int8", put("config_groups", {}), "config_groups must describe the weights"),
}
UNSUPPORTED_BY_OUTPUT: Cases = {
    "3 bits": ("W4A16", group("weights.num_bits", 3), "weights.num_bits 3 are not supported; supported: 4, 8"),
    "one scale": ("W4A16", group("weights.strategy", "tensor"), "weights.strategy 'tensor'"),
    "odd groups": ("W4A16", group("weights.group_size", 12), "must be a positive multiple of 8, got 12"),
    "float codes": ("W4A16", group("weights.type", "float"), "weights.type 'float'"),
    "marlin": ("W4A16", group("format", "marlin-24"), "format 'marlin-24' .* mxfp4-pack-quantized"),
    "mxfp6": ("MXFP4", group("format", "mxfp6-pack-quantized"), "format 'mxfp6-pack-quantized'"),
    "large groups": ("MXFP4", group("weights.group_size", 64), "group_size 64 are not supported; supported: 32"),
    "outputs": ("W4A16", group("output_activations", {"num_bits": 8}), "output_activations is not supported"),
    "AWQ of ModelOpt": ("NVFP4 of ModelOpt", put("quant_algo", "W4A16_AWQ"), "quant_algo 'W4A16_AWQ'"),
    "mixed of ModelOpt": (
        "NVFP4 of ModelOpt",
        lambda config, _: config.update(
            quant_algo="MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "INT4_AWQ"}}
        ),
        "quant_algo 'INT4_AWQ'",
    ),
    "mixed of Quark": ("MXFP4 of Quark", put("layer_quant_config", {"a": {}}), "layer_quant_config"),
    "int4 of Quark": (
        "MXFP4 of Quark",
        put("global_quant_config", {"weight": {"dtype": "int4"}}),
        "quark weights with dtype 'int4' are not supported; supported: fp4",
    ),
}
UNSUPPORTED |= {
    f"by output: {name}": (form, change, f"{reason}.*{INSTEAD}")
    for name, (form, change, reason) in UNSUPPORTED_BY_OUTPUT.items()
}
NF4, NESTED, MLX = (
    Blocks({"_proj": encoder}, given)
    for encoder, given in (
        (four_bits("nf4"), {"quant_method": "bitsandbytes"}),
        (four_bits("nf4", is_nested=True), {"quant_method": "bitsandbytes"}),
        (affine(4), {"bits": 4, "group_size": 64}),
    )
)
STATE = "weight.quant_state.bitsandbytes__nf4"


def with_state(**changes: object) -> Change:
    """Change what bitsandbytes says of a layer."""

    def change(_: object, tensors: dict[str, torch.Tensor]) -> None:
        state = json.loads(tensors[f"{Q}.{STATE}"].numpy().tobytes()) | changes
        tensors[f"{Q}.{STATE}"] = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)

    return change


BROKEN: Cases = {
    "no scales": (Scheme(), drop("scales"), f"tensor {Q}.scales is missing"),
    "no zeros": (Scheme("gptq"), drop("qzeros"), f"tensor {Q}.qzeros is missing"),
    "no codes": (Scheme(), drop("qweight"), f"tensor {Q}.weight is missing"),
    "other group": (Scheme(), put("group_size", 16), rf"tensor {Q}.scales has shape \[4, 128\], expected \[8, 128\]"),
    "group that does not divide": (
        Scheme(),
        put("group_size", 24),
        f"{Q}: its 128 inputs do not fall into groups of 24",
    ),
    "codes of another type": (
        Scheme(),
        swap("qweight", lambda codes: codes.long()),
        f"tensor {Q}.qweight has type I64, expected one of I32",
    ),
    "codes cut off": (
        Scheme("gptq"),
        swap("qweight", lambda codes: codes[:-1].clone()),
        rf"tensor {Q}.qweight has shape \[15, 128\], expected \[16, 128\]",
    ),
    "a bias": (Scheme("gptq"), replaced("bias", torch.ones(128)), f"tensor {Q}.bias is unknown to this architecture"),
    "scales: no scale": ("float8", drop("weight_scale"), f"tensor {Q}.weight_scale is missing"),
    "scales: no block scale": ("blocks", drop("weight_scale_inv"), f"tensor {Q}.weight_scale_inv is missing"),
    "scales: too few scales": (
        "float8",
        swap("weight_scale", lambda scale: scale[:-1].clone()),
        rf"tensor {Q}.weight_scale has shape \[127, 1\], expected \[128, 1\]",
    ),
    "scales: other blocks": (
        "small blocks",
        put("weight_block_size", [8, 8]),
        rf"tensor {Q}.weight_scale_inv has shape \[7, 4\], expected \[16, 16\]",
    ),
    "scales: whole scales": (
        "float8",
        swap("weight_scale", lambda scale: scale.int()),
        f"tensor {Q}.weight_scale has type I32, expected one of F32, BF16, F16",
    ),
    "scales: codes of another type": (
        "float8",
        swap("weight", lambda codes: codes.float().to(torch.float8_e5m2)),
        f"tensor {Q}.weight has type F8_E5M2, expected one of",
    ),
    "scales: codes cut off": (
        "int8",
        swap("weight", lambda codes: codes[:-1].clone()),
        rf"tensor {Q}.weight has shape \[127, 128\], expected \[128, 128\]",
    ),
    "by output: no scales": ("W4A16", drop("weight_scale"), rf"{Q}.weight_scale is missing"),
    "by output: no zero points": ("W8A16 with zero points", drop("weight_zero_point"), "weight_zero_point is missing"),
    "by output: no global scale": ("NVFP4", drop("weight_global_scale"), "weight_global_scale is missing"),
    "by output: short codes": (
        "W4A16",
        replaced("weight_packed", torch.zeros(128, 8, dtype=torch.int32)),
        r"weight_packed has shape \[128, 8\], expected \[128, 16\]",
    ),
    "by output: scales of bytes": (
        "NVFP4",
        replaced("weight_scale", torch.zeros(128, 8, dtype=torch.uint8)),
        "weight_scale has type U8, expected one of F8_E4M3",
    ),
    "in blocks: no scales": (NF4, drop("weight.absmax"), rf"{Q}.weight.absmax is missing"),
    "in blocks: no scales of scales": (NESTED, drop("weight.nested_absmax"), "weight.nested_absmax is missing"),
    "in blocks: another shape": (NF4, with_state(shape=[64, 256]), r"is of shape \[64, 256\], expected \[128, 128\]"),
    "in blocks: another type": (NF4, with_state(quant_type="nf3"), "quant_type must be nf4 or fp4, got 'nf3'"),
    "in blocks: no block": (NF4, with_state(blocksize=0), "blocksize must be a whole number >= 1"),
    "in blocks: no JSON": (
        NF4,
        replaced("weight.quant_state.bitsandbytes__nf4", torch.full((4,), 255, dtype=torch.uint8)),
        "blocksize must be a whole number >= 1 and nested_offset a number, got {}",
    ),
    "in blocks: other storage": (
        NF4,
        replaced("weight", torch.zeros(4096, 1, dtype=torch.bfloat16)),
        r"weight has shape \[4096, 1\], expected \[8192, 1\]",
    ),
    "in blocks: no biases": (MLX, drop("biases"), rf"{Q}.biases is missing"),
    "in blocks: odd groups": (
        MLX,
        replaced("scales", torch.zeros(128, 3)),
        "16 words and 3 scales a row are no affine codes of 128",
    ),
}
# Seen only when the numbers are read.
SPOILED: Cases = {
    "scale not a number": (Scheme(), spoil("scales", float("nan")), "must be finite.* found nan in group 0"),
    "infinite scale": (Scheme("gptq"), spoil("scales", float("inf")), "scales must be finite"),
    "scale beyond half": (Scheme(scales=torch.float32), spoil("scales", 1e6), "scales must be finite halves"),
    "group beyond the last": (Scheme("gptq"), spoil("g_idx", 7), r"g_idx must be in 0\.\.3, got 7 for input 3"),
    "negative group": (Scheme("gptq"), spoil("g_idx", -1), r"g_idx must be in 0\.\.3, got -1"),
    "uneven groups": (Scheme("gptq", group_size=16), spoil("g_idx", 1), "g_idx gives group 0 15 inputs, expected 16"),
    "scale without a number": (
        "MXFP4",
        replaced("weight_scale", torch.full((128, 4), 255, dtype=torch.uint8)),
        "scales must be finite halves, found nan in group 0, output 0",
    ),
    "global scale of zero": (
        "NVFP4",
        replaced("weight_global_scale", torch.zeros(1)),
        "must be a positive number, got 0",
    ),
    "unknown group": (
        "W4A16",
        replaced("weight_g_idx", torch.full((128,), 4, dtype=torch.int32)),
        r"g_idx must be in 0\.\.3, got 4 for input 0",
    ),
    "code of 8 bits": (
        "W4A8 in bytes",
        replaced("weight", torch.full((128, 128), 9, dtype=torch.int8)),
        r"codes must be in -8\.\.7, found 9",
    ),
    **{
        f"{form}, a scale that is {value}": (
            form,
            swap(SCALED[form].scale_name, lambda scale, value=value: torch.full_like(scale, value)),
            "scales must be finite, found .* for the block of output 0, input 0",
        )
        for form in ("small blocks", "one scale", "float8", "int8")
        for value in (float("nan"), float("inf"))
    },
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_the_engine_cannot_read_is_refused_by_name(case: str, source: Path, tmp_path: Path) -> None:
    form, change, reason = UNSUPPORTED[case]
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(damaged(source, tmp_path / "model", form, change), backend="turbomind")


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_checkpoint_is_refused_by_reason(case: str, source: Path, tmp_path: Path) -> None:
    form, change, reason = BROKEN[case]
    with pytest.raises(CheckpointError, match=reason):
        resolve(damaged(source, tmp_path / "model", form, change))


@pytest.mark.parametrize("case", SPOILED)
def test_spoiled_numbers_are_refused_when_they_are_read(case: str, source: Path, tmp_path: Path) -> None:
    form, change, reason = SPOILED[case]
    model = damaged(source, tmp_path / "model", form, change)
    with pytest.raises(ValueError, match=f"tensor layers.0.attention.qkv.weight: .*{reason}"):
        read_qkv(model)


GPTQ = {"bits": 4, "group_size": 32, "sym": True, "desc_act": False, "damp_percent": 0.01, "true_sequential": True}
ROUNDED = {"bits": 4, "group_size": 32, "sym": True, "data_type": "int", "iters": 200, "autoround_version": "0.4.2"}
# Values of quantization_config in config.json (None: nothing), and other files.
LAYOUTS: dict[str, tuple[Scheme, dict[str, Any] | None, dict[str, Any]]] = {
    "quantize_config.json": (
        Scheme("gptq", sym=True),
        None,
        {"quantize_config.json": GPTQ | {"model_file_base_name": "model"}},
    ),
    "quant_config.json": (
        Scheme(),
        None,
        {"quant_config.json": {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}},
    ),
    "gptq unsaid": (Scheme("gptq", sym=True), GPTQ, {}),
    "awq unsaid": (Scheme(), {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, {}),
    "exclusions": (
        Scheme("gptq", sym=True, unquantized=("lm_head", "up_proj")),
        GPTQ | {"quant_method": "gptq", "dynamic": {r"-:.*\.up_proj": {}}, "meta": {"quantizer": ["gptqmodel:2.2.0"]}},
        {},
    ),
    "auto-round": (
        Scheme("gptq", sym=True),
        ROUNDED
        | {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
        | {"extra_config": {"lm_head": {"bits": 16}}},
        {},
    ),
    "auto-round, older": (
        Scheme("gptq", sym=True),
        ROUNDED | {"quant_method": "intel/auto-round", "backend": "auto_round:gptq:exllamav2", "act_bits": 32},
        {},
    ),
    "auto-round, awq": (
        Scheme(), ROUNDED | {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "sym": False}, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYOUTS)
def test_settings_are_read_where_tools_write_them(case: str, source: Path, tmp_path: Path) -> None:
    scheme, declared, files = LAYOUTS[case]
    model = tmp_path / "model"
    quantize_checkpoint(source, model, scheme)
    expected = read_qkv(model)
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": declared}
    for name, content in {"config.json": config, **files}.items():
        (model / name).write_text(json.dumps(content))
    assert torch.equal(read_qkv(model), expected)


_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "DeepSeek-V4-Flash-FP8": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"],
    },
    "Kimi-K2.5": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": _GROUP},
        "ignore": ["lm_head", "re:.*self_attn.*"], "kv_cache_scheme": None, "quantization_status": "compressed",
        "global_compression_ratio": None, "sparsity_config": {}, "transform_config": {}, "version": "0.12.3",
    },
    "MiniMax-M2.5-NVFP4": {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {}}, "ignore": ["lm_head"],
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}, "producer": {"name": "modelopt"},
    },
    "Qwen-VL-Chat-Int4": {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": False, "sym": True,
        "static_groups": False, "true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model",
    },
    "gpt-oss-20b": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
}  # fmt: skip


@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_no_field_of_published_settings_is_unknown(name: str) -> None:
    method = AS_PUBLISHED[name]["quant_method"]
    assert weight_format({"quantization_config": AS_PUBLISHED[name]}) == ("hf" if method == "mxfp4" else method)


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
def test_published_settings_are_read(case: str, source: Path, tmp_path: Path) -> None:
    form, settings, besides = PUBLISHED[case]
    values = quantize_checkpoint(source, tmp_path / "model", FORMS[form])

    def publish(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        config.clear()
        config.update(settings)
        tensors.update({f"{Q}.{name}": torch.tensor(0.5) for name in besides})

    directory = resolve(damage(tmp_path / "model", publish), backend="turbomind").path
    up = values["model.layers.0.mlp.down_proj.weight"]
    assert torch.equal(device.read_tensor(directory, "layers.0.mlp.down.weight", list(up.shape)), up)


def test_settings_of_other_files_of_a_checkpoint_are_not_the_weights(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "model")
    onnx = {"per_channel": True, "reduce_range": True, "per_model_config": {"model": {"weight_type": "QInt8"}}}
    (tmp_path / "model" / "quantize_config.json").write_text(json.dumps(onnx))
    cache = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "model" / "hf_quant_config.json").write_text(json.dumps(cache))
    assert "quantization_config" not in read_config(tmp_path / "model")
    resolve(tmp_path / "model", backend="turbomind")


def test_scales_of_the_cache_alone_leave_the_weights_as_they_are(source: Path, tmp_path: Path) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    cache = {
        "quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": [],
        "kv_cache_scheme": scheme, "quantization_status": "frozen",
    }  # fmt: skip
    tensors = copy_files(source, tmp_path / "model")
    attention = "model.layers.0.self_attn"
    scales = {f"{attention}.{name}_scale": torch.tensor([0.5]) for name in "kv"}
    save_quantized(source, tmp_path / "model", tensors | scales, cache)
    assert torch.equal(read_qkv(tmp_path / "model"), read_qkv(source))


def test_a_bias_of_zeros_alongside_codes_is_harmless(source: Path, tmp_path: Path) -> None:
    resolve(damaged(source, tmp_path / "model", Scheme("gptq"), replaced("bias", torch.zeros(128))))


def test_a_gptq_checkpoint_without_a_named_format_is_of_the_first(source: Path, tmp_path: Path) -> None:
    old = Scheme("gptq").config()
    del old["checkpoint_format"]
    found = Quantization.from_config({"quantization_config": old})
    assert found == Quantization.from_config({"quantization_config": Scheme("gptq").config()})
    assert found != Quantization.from_config(
        {"quantization_config": Scheme("gptq", checkpoint_format="gptq_v2").config()}
    )


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
