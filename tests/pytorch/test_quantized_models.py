"""Checkpoints whose linear layers are codes, on the PyTorch engine: logits are those of what the codes stand for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.description import describe_for_worker
from lmdeploy.pytorch.quantized_weights import quantized_weights
from tests.pytorch.test_transformers_models import HIDDEN, LATENT, VOCAB, make, off, tokens_of
from tests.support import published
from tests.support.quantized_checkpoints import Scheme, damage, quantize_checkpoint, with_values
from tests.support.row_quantized import RowForm
from tests.support.scaled_checkpoints import FLOAT8, Form
from tests.support.worker_steps import Part, StepDriver

TOKENS = tokens_of(40)
WITH_EXPERTS = ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "DeepseekV2ForCausalLM"]
WIDE = {"intermediate_size": 128, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}

# How the tools store them. 8-bit activations cost up to a hundredth of the largest logit of a tiny random model.
FORMS: dict[str, Any] = {
    "awq": Scheme("awq"),
    "awq sym": Scheme("awq", sym=True, unquantized=("lm_head", "down_proj")),
    "gptq": Scheme("gptq", sym=True),
    "gptq act-order": Scheme("gptq", desc_act=True),
    "gptq 8 bits": Scheme("gptq", bits=8),
    "smooth_quant int8": Form("smooth_quant", torch.int8, "channel", "scale"),
    "smooth_quant fp8": Form("smooth_quant", FLOAT8, "channel", "scale"),
    "fp8 block": Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(64, 32)),
    "compressed-tensors int8": Form("compressed-tensors", torch.int8, "channel"),
    "compressed-tensors float8": Form("compressed-tensors", FLOAT8, "tensor", scale_shape="one"),
    "compressed-tensors w4a16": RowForm(),
    "compressed-tensors nvfp4": RowForm("nvfp4-pack-quantized", group=16),
}


@pytest.fixture(scope="module")
def unquantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain")
    make(directory, "LlamaForCausalLM", **WIDE)
    return directory


def logits_of(directory: Path, **options: Any) -> "np.ndarray[Any, Any]":
    driver = StepDriver(directory, VOCAB, HIDDEN, **options)
    [logits] = driver.step(Part(0, 0, TOKENS))
    return logits


@pytest.fixture(scope="module", params=WITH_EXPERTS)
def with_experts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("experts")
    more = LATENT | {"kv_lora_rank": 32} if request.param == "DeepseekV2ForCausalLM" else {}
    # All experts of a layer, so that no rounding chooses others.
    make(directory, request.param, **WIDE | more | {"moe_intermediate_size": 64, "num_experts_per_tok": 4})
    return directory


@pytest.mark.alike(max_cases=6)
@pytest.mark.parametrize("form", FORMS)
def test_experts_are_codes_too(with_experts: Path, tmp_path: Path, form: str) -> None:
    values = quantize_checkpoint(with_experts, tmp_path / "coded", FORMS[form])
    assert any(".experts." in name for name in values)
    expected = logits_of(with_values(with_experts, tmp_path / "numbers", values))
    assert off(logits_of(tmp_path / "coded"), expected) < 0.05
    assert off(logits_of(tmp_path / "coded", by_transformers=True), expected) < 0.05


def test_an_expert_that_is_no_code_is_named(tmp_path: Path) -> None:
    make(tmp_path / "plain", "Qwen3MoeForCausalLM", **WIDE, moe_intermediate_size=64)
    quantize_checkpoint(
        tmp_path / "plain",
        tmp_path / "coded",
        Scheme("awq", unquantized=("lm_head", "layers.1.mlp.experts.2.down_proj")),
    )
    for by_transformers, reason in (
        (True, r"experts\.2\.down_proj\.weight is not stored as codes"),
        (False, "3 of 4 matrices"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            logits_of(tmp_path / "coded", by_transformers=by_transformers)


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_what_the_codes_stand_for(unquantized: Path, tmp_path: Path, form: str) -> None:
    values = quantize_checkpoint(unquantized, tmp_path / "coded", FORMS[form])
    expected = logits_of(with_values(unquantized, tmp_path / "numbers", values))
    logits = logits_of(tmp_path / "coded")
    reference = logits_of(tmp_path / "coded", by_transformers=True)
    assert off(logits, expected) < 0.02
    assert off(reference, expected) < 0.02
    layers = quantized_weights(tmp_path / "coded")
    assert layers is not None
    assert layers.shapes.keys() == {name.removesuffix(".weight") for name in values}


def test_the_kernels_multiply_with_the_codes_themselves(unquantized: Path, tmp_path: Path) -> None:
    quantize_checkpoint(unquantized, tmp_path / "coded", Scheme("awq"))
    layers = quantized_weights(tmp_path / "coded")
    assert layers is not None
    layer = "model.layers.0.self_attn"
    rows = [(f"{layer}.{name}_proj", slice(0, layers.shapes[f"{layer}.{name}_proj"][0])) for name in "qkv"]
    assert layers.matrix(rows).is_packed
    assert layers.matrix(rows[:1], slice(32, 64)).is_packed
    assert not layers.matrix(rows[:1], slice(8, 24)).is_packed  # no whole group


@pytest.mark.parametrize("form", [Scheme("awq"), Scheme("gptq", desc_act=True), FORMS["fp8 block"]], ids=str)
def test_a_rank_multiplies_with_its_part_of_the_codes(unquantized: Path, tmp_path: Path, form: Any) -> None:
    values = quantize_checkpoint(unquantized, tmp_path / "coded", form)
    layers = quantized_weights(tmp_path / "coded")
    assert layers is not None
    layer = "model.layers.0.mlp.down_proj"  # [64, 128]
    weight, x = values[f"{layer}.weight"], torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    bias = torch.arange(32.0)
    for outputs, inputs in ((slice(32, 64), slice(0, 128)), (slice(0, 32), slice(64, 128))):
        matrix = layers.matrix([(layer, outputs)], inputs, bias)
        got = kernels().linear(matrix.native, matrix.out_features, x[:, inputs])
        product = x[:, inputs].double() @ weight[outputs, inputs].double().T
        # Inputs are rounded to 8 bits in groups, or to bfloat16 on some machines.
        torch.testing.assert_close(got.double() - bias, product, rtol=0, atol=0.02 * float(product.abs().max()))


def test_numbers_of_a_layer_are_those_that_its_codes_stand_for(unquantized: Path, tmp_path: Path) -> None:
    for number, form in enumerate((Scheme("awq"), Form("smooth_quant", torch.int8, "channel", "scale"), RowForm())):
        values = quantize_checkpoint(unquantized, tmp_path / str(number), form)
        layers = quantized_weights(tmp_path / str(number))
        assert layers is not None
        for layer in layers.shapes:
            torch.testing.assert_close(layers.numbers(layer), values[f"{layer}.weight"], rtol=1e-6, atol=0)


LAYER = "model.layers.1.mlp.up_proj"
BAD: dict[str, tuple[Any, Callable[[Any, Any], object], str]] = {
    "no scales": (
        Scheme("awq"),
        lambda _, tensors: tensors.pop(f"{LAYER}.scales"),
        f"tensor {LAYER}.scales is missing",
    ),
    "another group": (
        Scheme("awq"),
        lambda config, _: config.update(group_size=64),
        r"tensor .*\.qzeros has shape \[2, \d+\], expected \[1, \d+\]",
    ),
    "no scale": (
        Form("smooth_quant", torch.int8, "channel", "scale"),
        lambda _, tensors: tensors.pop(f"{LAYER}.scale"),
        f"tensor {LAYER}.scale is missing",
    ),
    "an unknown method": (Scheme("awq"), lambda config, _: config.update(quant_method="hqq"), "method 'hqq'"),
    "an unknown version": (Scheme("awq"), lambda config, _: config.update(version="gemv"), "version 'gemv'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_checkpoint_that_is_not_whole_is_refused_with_the_tensor(
    unquantized: Path, tmp_path: Path, case: str
) -> None:
    form, edit, reason = BAD[case]
    quantize_checkpoint(unquantized, tmp_path / "coded", form)
    damage(tmp_path / "coded", edit)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=reason):
        logits_of(tmp_path / "coded", by_transformers=True)


@pytest.mark.parametrize("by_transformers", [False, True])
def test_layers_that_mix_codes_and_numbers(unquantized: Path, tmp_path: Path, by_transformers: bool) -> None:
    values = quantize_checkpoint(
        unquantized, tmp_path / "coded", Scheme("awq", unquantized=("lm_head", "layers.1.mlp.gate_proj"))
    )
    if not by_transformers:  # gate and up are one layer there
        with pytest.raises(CheckpointError, match=r"mlp.gate_up_proj: 128 of a layer's 256 outputs are codes"):
            logits_of(tmp_path / "coded")
        return
    expected = logits_of(with_values(unquantized, tmp_path / "numbers", values))
    assert off(logits_of(tmp_path / "coded", by_transformers=True), expected) < 0.02


GPT_OSS = {"head_dim": 16, "sliding_window": 8}


def test_stacks_of_experts_may_be_mxfp4(tmp_path: Path) -> None:
    model = make(tmp_path / "coded", "GptOssForCausalLM", **GPT_OSS)
    published.mxfp4(tmp_path / "coded")
    with torch.inference_mode():
        expected = published.mxfp4_forward(model, TOKENS).numpy()
    assert off(logits_of(tmp_path / "coded", dtype="float32"), expected) < 1e-4


def test_a_stack_without_scales_is_refused_with_the_tensor(tmp_path: Path) -> None:
    make(tmp_path / "coded", "GptOssForCausalLM", **GPT_OSS)
    published.mxfp4(tmp_path / "coded")
    missing = "model.layers.1.mlp.experts.down_proj_scales"
    damage(tmp_path / "coded", lambda _, tensors: tensors.pop(missing))
    with pytest.raises(CheckpointError, match=f"tensor {missing} is missing"):
        logits_of(tmp_path / "coded")


def test_the_spec_of_a_coded_checkpoint(unquantized: Path, tmp_path: Path) -> None:
    quantize_checkpoint(unquantized, tmp_path / "coded", Scheme("awq"))
    spec = describe_for_worker(tmp_path / "coded", "m")
    assert (spec.num_layers, spec.hidden_size) == (2, HIDDEN)
    for settings, reason in (
        ({"quant_method": "hqq"}, "weights of method 'hqq' are not supported"),
        ({"quant_method": "mlx"}, "mlx weights are not supported by the PyTorch engine: use the backend turbomind"),
        ({"quant_method": "gptq", "bits": 3}, "gptq weights of 3 bits are not supported by the PyTorch engine"),
    ):
        damage(tmp_path / "coded", lambda config, _, settings=settings: config.update(settings))
        with pytest.raises(UnsupportedModelError, match=reason):
            describe_for_worker(tmp_path / "coded", "m")
