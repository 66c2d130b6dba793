"""Matrices stored as codes: the engine reads the numbers they stand for, and multiplies with the codes themselves."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.convert import convert
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.manifest import (
    Expression,
    Load,
    Manifest,
    concat,
    find_problems,
    permute,
    reshape,
    rows_of,
    transpose,
)
from lmdeploy.turbomind.quantized import Quantization, weight_format, with_quantized
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex, read_checkpoint
from tests.kernels import device
from tests.kernels.reference import round_activations
from tests.support.quantized_checkpoints import (
    AWQ_ORDER,
    Change,
    Scheme,
    damage,
    pack,
    quantize,
    quantize_checkpoint,
    tensors_of,
)
from tests.support.tiny_models import make_tiny_llama

SHAPES = {"a": (48, 256), "b": (24, 256)}

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


def write_quantized(directory: Path, scheme: Scheme, expression: Expression) -> dict[str, torch.Tensor]:
    """Write two layers as codes and a manifest with one tensor, ``x``; return the numbers the codes stand for."""
    torch.manual_seed(7)
    tensors, numbers = {}, {}
    for name, shape in SHAPES.items():
        quantized = quantize(torch.randn(shape) + 0.1, scheme)
        numbers[f"{name}.weight"] = quantized.dequantized()
        tensors |= {f"{name}.{part}": tensor for part, tensor in tensors_of(quantized, scheme).items()}
    quantization = Quantization.from_config({"quantization_config": scheme.config()})
    assert quantization is not None
    write_manifest(directory, tensors, lambda index: with_quantized({"x": expression}, quantization, index))
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


def read_tensor(directory: Path, shape: torch.Size) -> torch.Tensor:
    """Return the engine tensor ``x`` as the engine reads it."""
    return device.read_tensor(directory, "x", list(shape))


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_engine_reads_and_multiplies_the_numbers_that_codes_stand_for(
    scheme: str, name: str, tmp_path: Path
) -> None:
    numbers = write_quantized(tmp_path, SCHEMES[scheme], EXPRESSIONS[name])
    weight = values_of(EXPRESSIONS[name], numbers)
    assert torch.equal(read_tensor(tmp_path, weight.shape), weight)
    x = torch.randn(3, weight.shape[1])
    found = device.multiply_quantized(tmp_path, "x", list(weight.shape), x)
    assert (found is not None) == (name in STAYS_CODES)
    if found is not None:
        if SCHEMES[scheme].desc_act:  # inputs are rounded with those of their group
            order = np.argsort(quantize(weight, SCHEMES[scheme]).groups, kind="stable")
            x, weight = x[:, order], weight[:, order]
        group = {-1: 128}.get(SCHEMES[scheme].group_size, SCHEMES[scheme].group_size)
        rounded = round_activations(x, group)
        bound = 1e-5 * (rounded.abs() @ weight.abs().double().T)
        assert ((found.double() - rounded @ weight.double().T).abs() <= bound).all()


def test_the_encoder_of_these_tests_packs_as_published_checkpoints_do() -> None:
    assert pack(np.arange(8)[None], 4, 1, AWQ_ORDER) == 0x75316420  # the order AutoAWQ's kernels undo
    assert pack(np.arange(8)[:, None], 4, 0) == 0x76543210
    assert pack(np.arange(4)[:, None], 8, 0) == 0x03020100


# ---- what is refused ----


@pytest.fixture(scope="module")
def unquantized_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", num_hidden_layers=1)


Q = "model.layers.0.self_attn.q_proj"


def put(key: str, value: Any) -> Change:
    return lambda config, _: config.update({key: value})


def drop(name: str) -> Change:
    return lambda _, tensors: tensors.pop(name)


def spoil(name: str, value: float) -> Change:
    return lambda _, tensors: tensors[name].view(-1)[3:4].fill_(value)


UNSUPPORTED: dict[str, tuple[Scheme, Change, str]] = {
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
}
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
BROKEN: dict[str, tuple[Scheme, Change, str]] = {
    "no scales": (Scheme(), drop(f"{Q}.scales"), f"tensor {Q}.scales is missing"),
    "no zeros": (Scheme("gptq"), drop(f"{Q}.qzeros"), f"tensor {Q}.qzeros is missing"),
    "no codes": (Scheme(), drop(f"{Q}.qweight"), f"tensor {Q}.weight is missing"),
    "other group": (Scheme(), put("group_size", 16), rf"tensor {Q}.scales has shape \[1, 32\], expected \[2, 32\]"),
    "group that does not divide": (
        Scheme(),
        put("group_size", 24),
        f"{Q}: its 32 inputs do not fall into groups of 24",
    ),
    "codes of another type": (
        Scheme(),
        lambda _, tensors: tensors.update({f"{Q}.qweight": tensors[f"{Q}.qweight"].long()}),
        f"tensor {Q}.qweight has type I64, expected one of I32",
    ),
    "codes cut off": (
        Scheme("gptq"),
        lambda _, tensors: tensors.update({f"{Q}.qweight": tensors[f"{Q}.qweight"][:-1].clone()}),
        rf"tensor {Q}.qweight has shape \[3, 32\], expected \[4, 32\]",
    ),
    "a bias": (
        Scheme("gptq"),
        lambda _, tensors: tensors.update({f"{Q}.bias": torch.ones(32)}),
        f"tensor {Q}.bias is unknown to this architecture",
    ),
}
# Seen only when the numbers are read.
SPOILED: dict[str, tuple[Scheme, Change, str]] = {
    "scale not a number": (
        Scheme(),
        spoil(f"{Q}.scales", float("nan")),
        "must be finite.* found nan in group 0",
    ),
    "infinite scale": (Scheme("gptq"), spoil(f"{Q}.scales", float("inf")), "scales must be finite"),
    "scale beyond half": (Scheme(scales=torch.float32), spoil(f"{Q}.scales", 1e6), "scales must be finite halves"),
    "group beyond the last": (Scheme("gptq"), spoil(f"{Q}.g_idx", 7), r"g_idx must be in 0\.\.0, got 7 for input 3"),
    "negative group": (Scheme("gptq"), spoil(f"{Q}.g_idx", -1), r"g_idx must be in 0\.\.0, got -1"),
    "uneven groups": (
        Scheme("gptq", group_size=16),
        spoil(f"{Q}.g_idx", 1),
        "g_idx gives group 0 15 inputs, expected 16",
    ),
}


def damaged(source: Path, target: Path, scheme: Scheme, change: Change) -> Path:
    quantize_checkpoint(source, target, scheme)
    return damage(target, change)


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_the_engine_cannot_read_is_refused_by_name(case: str, unquantized_model: Path, tmp_path: Path) -> None:
    scheme, change, reason = UNSUPPORTED[case]
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(damaged(unquantized_model, tmp_path / "model", scheme, change), backend="turbomind")


@pytest.mark.parametrize("case", LAYOUTS)
def test_settings_are_read_where_tools_write_them(case: str, unquantized_model: Path, tmp_path: Path) -> None:
    def read(directory: Path) -> torch.Tensor:
        return device.read_tensor(
            resolve(directory, backend="turbomind").path, "layers.0.attention.qkv.weight", [64, 32]
        )

    scheme, declared, files = LAYOUTS[case]
    model = tmp_path / "model"
    quantize_checkpoint(unquantized_model, model, scheme)
    expected = read(model)
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": declared}
    for name, content in {"config.json": config, **files}.items():
        (model / name).write_text(json.dumps(content))
    assert torch.equal(read(model), expected)


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


def test_settings_of_other_files_of_a_checkpoint_are_not_the_weights(unquantized_model: Path, tmp_path: Path) -> None:
    shutil.copytree(unquantized_model, tmp_path / "model")
    onnx = {"per_channel": True, "reduce_range": True, "per_model_config": {"model": {"weight_type": "QInt8"}}}
    (tmp_path / "model" / "quantize_config.json").write_text(json.dumps(onnx))
    cache = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "model" / "hf_quant_config.json").write_text(json.dumps(cache))
    assert "quantization_config" not in read_config(tmp_path / "model")
    resolve(tmp_path / "model", backend="turbomind")


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_checkpoint_is_refused_by_reason(case: str, unquantized_model: Path, tmp_path: Path) -> None:
    scheme, change, reason = BROKEN[case]
    with pytest.raises(CheckpointError, match=reason):
        resolve(damaged(unquantized_model, tmp_path / "model", scheme, change))


@pytest.mark.parametrize("case", SPOILED)
def test_spoiled_numbers_are_refused_when_they_are_read(case: str, unquantized_model: Path, tmp_path: Path) -> None:
    scheme, change, reason = SPOILED[case]
    directory = resolve(damaged(unquantized_model, tmp_path / "model", scheme, change)).path
    with pytest.raises(ValueError, match=f"tensor layers.0.attention.qkv.weight: .*{reason}"):
        device.read_tensor(directory, "layers.0.attention.qkv.weight", [64, 32])


def test_all_problems_are_reported_at_once(unquantized_model: Path, tmp_path: Path) -> None:
    def damage(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        del tensors[f"{Q}.scales"], tensors["model.layers.0.mlp.up_proj.qzeros"]

    with pytest.raises(CheckpointError) as raised:
        resolve(damaged(unquantized_model, tmp_path / "model", Scheme(), damage))
    assert len(raised.value.problems) == 2


def test_a_bias_of_zeros_alongside_codes_is_harmless(unquantized_model: Path, tmp_path: Path) -> None:
    resolve(
        damaged(
            unquantized_model,
            tmp_path / "model",
            Scheme("gptq"),
            lambda _, tensors: tensors.update({f"{Q}.bias": torch.zeros(32)}),
        )
    )


def test_a_gptq_checkpoint_without_a_named_format_is_of_the_first(unquantized_model: Path, tmp_path: Path) -> None:
    old = Scheme("gptq").config()
    del old["checkpoint_format"]
    found = Quantization.from_config({"quantization_config": old})
    assert found == Quantization.from_config({"quantization_config": Scheme("gptq").config()})
    assert found != Quantization.from_config(
        {"quantization_config": dataclasses.replace(Scheme("gptq"), checkpoint_format="gptq_v2").config()}
    )


def test_convert_refuses_a_format_that_is_not_the_checkpoints(unquantized_model: Path, tmp_path: Path) -> None:
    quantize_checkpoint(unquantized_model, tmp_path / "model", Scheme())
    with pytest.raises(ValueError, match="model_format is gptq, but the checkpoint's weights are awq"):
        convert(str(tmp_path / "model"), tmp_path / "workspace", model_format="gptq")
    convert(str(tmp_path / "model"), tmp_path / "workspace", model_format="awq")
