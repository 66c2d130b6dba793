"""Models stored as codes of every kind against `transformers` run on the numbers that the codes stand for."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.tokenizer import Tokenizer
from tests.support import published
from tests.support.block_quantized import Blocks, affine, four_bits, int8
from tests.support.expert_models import MODELS as EXPERT_MODELS
from tests.support.quantized_checkpoints import Scheme, damage, quantize_checkpoint, with_values
from tests.support.row_quantized import RowForm
from tests.support.scaled_checkpoints import FLOAT8, Form
from tests.support.tiny_models import make_tiny, make_tiny_llama

SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
WEIGHTS = "model.safetensors"
PROMPT = "Once upon a time, in a land far away, there lived"
MX, NV = "mxfp4-pack-quantized", "nvfp4-pack-quantized"
BNB, MLX = {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"group_size": 64, "bits": 4}
ONE_SCALE = Form("compressed-tensors", FLOAT8, "tensor", scale_shape="scalar", static_activations=True)
CODES = {
    "awq": Scheme(group_size=128),
    "awq whole row": Scheme(group_size=-1),
    "awq with its lm_head": Scheme(unquantized=()),
    "awq without k and gate": Scheme(unquantized=("lm_head", "k_proj", "gate_proj")),
    "gptq": Scheme("gptq", group_size=64),
    "gptq 8 bits symmetric": Scheme("gptq", bits=8, sym=True, group_size=128, checkpoint_format="gptq_v2"),
    "gptq ordered": Scheme("gptq", desc_act=True),
    "gptq 3 bits": Scheme("gptq", bits=3, group_size=128),
    "gptq 3 bits ordered, whole row": Scheme("gptq", bits=3, group_size=-1, sym=True, desc_act=True),
    "gptq 3 bits second format": Scheme("gptq", bits=3, checkpoint_format="gptq_v2"),
}
SCALED = {
    "fp8 in blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv"),
    "fp8 in small blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(48, 64)),
    "fp8, one scale": Form("fp8", FLOAT8, "tensor", scale_shape="scalar", static_activations=True),
    "fbgemm_fp8": Form("fbgemm_fp8", FLOAT8, "channel"),
    "compressed int8": Form("compressed-tensors", torch.int8, "channel", scales=torch.bfloat16),
    "compressed int8, one scale": Form("compressed-tensors", torch.int8, "tensor", static_activations=True),
    "compressed float8": Form("compressed-tensors", FLOAT8, "channel", scales=torch.bfloat16),
    "compressed float8, one scale": Form("compressed-tensors", FLOAT8, "tensor", static_activations=True),
    "compressed float8 in blocks": Form("compressed-tensors", FLOAT8, "block", scales=torch.bfloat16),
    "MXFP8 of ModelOpt": Form("modelopt", FLOAT8, "group", scales=torch.uint8),
    "compressed MXFP8": Form("compressed-tensors", FLOAT8, "group", scales=torch.uint8),
    "smooth_quant int8": Form("smooth_quant", torch.int8, "channel", "scale"),
    "smooth_quant float8": Form("smooth_quant", FLOAT8, "channel", "scale"),
    "float8 with its lm_head": Form("compressed-tensors", FLOAT8, "channel", unquantized=()),
    "int8 without k and gate": Form(
        "compressed-tensors", torch.int8, "channel", unquantized=("lm_head", "k_proj", "gate_proj")
    ),
}
BY_OUTPUT = {
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
IN_BLOCKS = {
    "NF4": Blocks({"_proj": four_bits("nf4")}, BNB),
    "NF4 with quantized scales": Blocks({"_proj": four_bits("nf4", is_nested=True)}, BNB),
    "FP4 of some layers": Blocks({"up_proj": four_bits("fp4"), "v_proj": four_bits("fp4")}, BNB),
    "LLM.int8()": Blocks({"_proj": int8}, BNB),
    "MLX": Blocks({"_proj": affine(4), "lm_head": affine(4), "embed_tokens": affine(4)}, MLX),
    "MLX, 3 and 6 bits": Blocks({"down_proj": affine(6, 128), "_proj": affine(3, 32)}, MLX),
    "MLX, 8 bits": Blocks({"_proj": affine(8, 32), "lm_head": affine(5)}, MLX),
}
FORMS: dict[str, Any] = CODES | SCALED | BY_OUTPUT | IN_BLOCKS

# About twice what 8 bits for the activations cost in this model; codes in a wrong order are off by more than 1.
LIMIT = 0.02


def limit_of(form: Any) -> float:
    """Return how far logits may be: float8 has activations of 16 bits at least, 4-bit floats of tables have 32."""
    if isinstance(form, Blocks):
        is_exact = form.quantization is BNB and int8 not in form.encoders.values()
        return 1e-4 if is_exact else LIMIT
    return 0.006 if getattr(form, "dtype", None) == FLOAT8 else LIMIT


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in float32 with a bias in its attention and its own output layer."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    return make_tiny_llama(directory, attention_bias=True, tie_word_embeddings=False, initializer_range=0.05, **SIZES)


def logits_of(directory: Path, **settings: Any) -> torch.Tensor:
    """Return the engine's logits of the prompt, ``[tokens, vocab]``."""
    config = TurbomindEngineConfig(**{"dtype": "float32", "cache_max_entry_count": 16, **settings})
    with pipeline(str(directory), backend_config=config) as model:
        response = model(PROMPT, GenerationConfig(max_new_tokens=1, output_logits="all"), do_preprocess=False)
        return torch.as_tensor(response.logits)[: response.input_token_len]


def reference_of(source: Path, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of `transformers` with some weights replaced."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    model.load_state_dict(values, strict=False)
    with torch.no_grad():
        return model(torch.tensor([Tokenizer(str(source)).encode(PROMPT)])).logits[0]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


def distance_of_experts(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the distance of all tokens but the farthest, or more than any limit if that one is off by half.

    Where two experts nearly tie, activations of 8 bits may choose the other one, which costs a fifth.
    """
    *most, farthest = (a - b).square().sum(dim=1).argsort().tolist()
    return distance(a[most], b[most]) if distance(a[farthest], b[farthest]) < 0.5 else 1.0


@pytest.mark.alike(max_cases=24)
@pytest.mark.parametrize("name", FORMS)
def test_the_logits_are_those_of_the_stored_numbers(name: str, source: Path, tmp_path: Path) -> None:
    form = FORMS[name]
    values = quantize_checkpoint(source, tmp_path / "model", form)
    assert len(values) >= 4
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < limit_of(form)


@pytest.mark.parametrize("name", ["W4A16 in order of importance", "W8A16", "NVFP4", "NF4", "MLX"])
def test_inputs_are_divided_over_ranks(name: str, source: Path, tmp_path: Path) -> None:
    form = FORMS[name]
    values = quantize_checkpoint(source, tmp_path / "model", form)
    assert distance(logits_of(tmp_path / "model", tp=2), reference_of(source, values)) < limit_of(form)


EXPERTS = {
    "num_hidden_layers": 1,
    "initializer_range": 0.05,
    "hidden_size": 64,
    "moe_intermediate_size": 96,
    "num_experts_per_tok": 2,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
GROUPS = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2}
DEEPSEEK_V3 = EXPERTS | LATENT | GROUPS | {"num_hidden_layers": 2, "first_k_dense_replace": 1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Phi-3": ("Phi3ForCausalLM", SIZES | {"initializer_range": 0.05, "pad_token_id": 0}),  # fused layers
    "Qwen2-MoE": ("Qwen2MoeForCausalLM", EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 64}),
    "DeepSeek-V2": ("DeepseekV2ForCausalLM", EXPERTS | LATENT | {"n_routed_experts": 4, "n_shared_experts": 1}),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", DEEPSEEK_V3),
    "GLM-4.5": ("Glm4MoeForCausalLM", DEEPSEEK_V3 | {"num_key_value_heads": 2, "head_dim": 32}),
    "MiniMax-M2": ("MiniMaxM2ForCausalLM", EXPERTS | {"num_local_experts": 4, "head_dim": 32}),
}
OF_MODELS = ["gptq ordered", "fp8 in small blocks", "compressed float8", "compressed int8", "MXFP8 of ModelOpt"]
OF_MODELS += ["W4A16", "MXFP4"]


@pytest.mark.alike
@pytest.mark.parametrize("name", OF_MODELS)
@pytest.mark.parametrize("model", MODELS)
def test_fused_layers_and_experts_are_read_from_their_codes(model: str, name: str, tmp_path: Path) -> None:
    architecture, sizes = MODELS[model]
    tiny = make_tiny(tmp_path / "source", architecture, **sizes)
    values = quantize_checkpoint(tiny, tmp_path / "model", FORMS[name])
    assert any(part in key for key in values for part in ("qkv_proj", "experts.3.down_proj", "experts.3.w2"))
    # `transformers` keeps experts stacked, so it reads the numbers from a checkpoint.
    expected = reference_of(with_values(tiny, tmp_path / "plain", values), {})
    measure = distance_of_experts if "num_experts_per_tok" in sizes else distance
    assert measure(logits_of(tmp_path / "model"), expected) < limit_of(FORMS[name])


@pytest.mark.parametrize("name", ["awq", "fp8 in blocks"])
def test_codes_stay_as_they_are_alongside_quantized_weights_and_a_quantized_cache(
    name: str, source: Path, tmp_path: Path
) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS[name])
    exact = reference_of(source, values)
    # 4 bits for what is left, the output layer's 8; were the codes rounded again to 4 bits, this would be 0.1.
    for settings in ({"weight_bits": 4}, {"weight_bits": 8, "quant_policy": 8, "dtype": "bfloat16"}):
        assert distance(logits_of(tmp_path / "model", **settings), exact) < LIMIT


def test_the_logits_are_those_of_weights_that_transformers_widens(source: Path, tmp_path: Path) -> None:
    form = SCALED["fp8 in small blocks"]
    quantized = quantize_checkpoint(source, tmp_path / "model", form)
    # `transformers` runs such a checkpoint with the package accelerate alone; its arithmetic needs nothing.
    stored = load_file(tmp_path / "model" / WEIGHTS)
    values = {
        name: _dequantize_fp8_weight(
            stored[name], stored[name.replace(".weight", ".weight_scale_inv")], list(form.block), torch.float32
        )
        for name in quantized
    }
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < limit_of(form)


@pytest.mark.parametrize("name", ["fp8 in blocks", "smooth_quant int8"])
def test_a_response_takes_the_most_likely_tokens_of_the_stored_numbers(name: str, source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS[name])
    config = TurbomindEngineConfig(cache_max_entry_count=16, model_format=FORMS[name].method)
    with pipeline(str(tmp_path / "model"), backend_config=config) as model:
        response = model(PROMPT, GenerationConfig(max_new_tokens=12, ignore_eos=True, top_k=1), do_preprocess=False)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    model.load_state_dict(values, strict=False)
    prompt = Tokenizer(str(source)).encode(PROMPT)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response.token_ids])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(response.token_ids)[:, None])[:, 0]
    spread = logits.std(-1)
    assert ((logits.amax(-1) - chosen) / spread < 4 * limit_of(FORMS[name])).all()


@pytest.mark.parametrize(
    ("name", "wrong"), [("awq", "gptq"), ("gptq", "awq"), ("awq", "hf"), ("compressed int8", "fp8"), ("", "awq")]
)
def test_a_model_format_that_is_not_the_checkpoints_is_refused(
    name: str, wrong: str, source: Path, tmp_path: Path
) -> None:
    model, method = source, "hf"
    if name:
        model, method = tmp_path / "model", FORMS[name].method
        quantize_checkpoint(source, model, FORMS[name])
    with pytest.raises(ValueError, match=f"model_format is {wrong}, but the checkpoint's weights are {method}"):
        logits_of(model, model_format=wrong)
    logits_of(model, model_format=method)


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
    values = quantize_checkpoint(source, tmp_path / "model", ONE_SCALE)
    damage(
        tmp_path / "model", lambda config, _: (config.clear(), config.update(quant_method="modelopt", quant_algo="FP8"))
    )
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < limit_of(ONE_SCALE)


def test_model_optimizer_stores_some_layers_in_float8_and_some_in_4_bits(source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", ONE_SCALE)
    numbers = load_file(source / WEIGHTS)
    layers: dict[str, dict[str, Any]] = {name.removesuffix(".weight"): {"quant_algo": "FP8"} for name in values}

    def mix(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for layer in [layer for layer in layers if ".mlp." in layer]:
            stored, values[f"{layer}.weight"] = FORMS["NVFP4 of ModelOpt"].encode(numbers[f"{layer}.weight"])
            tensors.update({f"{layer}.{name}": tensor for name, tensor in stored.items()})
            layers[layer] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
        config.clear()
        config.update(quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)

    damage(tmp_path / "model", mix)
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < LIMIT


MIXED_NVFP4 = {"quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16}
MIXED_NVFP4 |= {"quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}}}
V4_SIZES = {"hidden_size": 64, "moe_intermediate_size": 64, "n_routed_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("experts", "config"), [(RowForm(MX), {}), (FORMS["NVFP4 of ModelOpt"], MIXED_NVFP4)], ids=["fp4", "nvfp4"]
)
def test_deepseek_v4_stores_layers_in_float8_and_experts_in_4_bits(
    experts: RowForm, config: dict[str, Any], tmp_path: Path
) -> None:
    architecture, fields = EXPERT_MODELS["DeepSeek-V4"]
    tiny = make_tiny(tmp_path / "source", architecture, **fields | V4_SIZES | {"initializer_range": 0.05})
    published.deepseek_v4(tiny)
    float8 = Form("fp8", FLOAT8, "block", "scale", scales=torch.uint8, block=(32, 32))
    values = {}

    def encode(settings: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        layers = [name.removesuffix(".weight") for name in tensors if re.search(r"[.]w\w+[.]weight$", name)]
        for layer in [layer for layer in layers if ".compressor." not in layer and "weights_proj" not in layer]:
            is_expert = ".experts." in layer
            weight = tensors.pop(f"{layer}.weight")
            stored, values[f"{layer}.weight"] = (experts if is_expert else float8).encode(weight)
            if "weight_packed" in stored:
                stored = {"weight": stored["weight_packed"].view(torch.int8), "scale": stored["weight_scale"]}
            if "scale" in stored:
                stored["scale"] = stored["scale"].view(torch.float8_e8m0fnu)
            tensors.update({f"{layer}.{name}": tensor for name, tensor in stored.items()})
        fp8 = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [32, 32]}
        settings.update(fp8 | {"expert_dtype": "fp4"} | config)

    shutil.copytree(tiny, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": {}}))
    damage(tmp_path / "model", encode)
    assert len(values) > 4 * 3 * V4_SIZES["n_routed_experts"]
    expected = reference_of(with_values(tiny, tmp_path / "plain", values), {})
    # The median row: rounding of activations may choose another expert.
    errors = (logits_of(tmp_path / "model") - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(errors.median()) < LIMIT
