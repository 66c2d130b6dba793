"""Every architecture name of GGUF that is read, alongside llama.cpp itself, on files that its own converter writes.

Tiny checkpoints of `transformers` become float32 files by ``convert_hf_to_gguf.py`` of the sources that ``make peers``
unpacks; both engines read the same file. llama.cpp is asked for a cache in float32, and looks GELU up in a table of
halves: its logits agree to 1e-3 of the largest of their row, and where GELU is, to 1e-2.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from lmdeploy.turbomind.gguf.architectures import ARCHITECTURES
from lmdeploy.turbomind.safetensors_index import read_files
from tests.engine.test_model_families import CASES as FAMILIES
from tests.engine.test_model_families import TEMPERATURE_ROPE, UNTIED, YARN_ROPE, reference_forward
from tests.support import published
from tests.support.expert_models import PHI_ROPE, QWEN_EXPERTS
from tests.support.hybrid_models import EXPERTS as HYBRID_EXPERTS
from tests.support.hybrid_models import GATED_DELTA
from tests.support.llama_cpp import convert, logits_of_llama_cpp, require_llama_cpp
from tests.support.tiny_models import make_small
from tests.support.token_engine import TokenEngine, relative_error

PROMPT = [(37 * i * i + 11 * i) % 900 + 100 for i in range(45)]
TOLERANCE, WITH_GELU, WITH_CODES = 1e-3, 1e-2, 3e-2
# llama.cpp has one size for heads of keys and of values.
HYBRID = GATED_DELTA | {"linear_value_head_dim": 16}
HYBRID_WITH_EXPERTS = HYBRID | HYBRID_EXPERTS
WITHOUT_DRAFTS = ("--no-mtp",)
HAVE_DRAFTS = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "nemotron_h", "mimo_v2_flash"}
NEMOTRON_LETTERS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
NEMOTRON_EXPERTS = ["num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"]  # also in a config without them


def family(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return a model of the families' tests."""
    case = FAMILIES[name]
    return case.architecture, case.overrides | more


# llama.cpp wants the sections of a rotation in three dimensions within a head.
WIDE_HEADS = {"head_dim": 64}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
EVERY_SIXTH = [*["sliding_attention"] * 5, "full_attention"]
EVERY_FOURTH = [*["sliding_attention"] * 3, "full_attention"]
# The converter computes a factor of cos and sin; a published one may differ.
PHIMOE_ROPE = PHI_ROPE | dict.fromkeys(("short_mscale", "long_mscale"), math.sqrt(1 + math.log(4) / math.log(128)))
FIRST_DENSE = ["dense", *["sparse"] * 3]
FOUR_LAYERS = {"num_hidden_layers": 4, "layer_types": EVERY_FOURTH}
LAGUNA_LAYERS = {"layer_types": ["full_attention", *["sliding_attention"] * 3]}
LAGUNA_LAYERS |= {"num_attention_heads_per_layer": [4, 8, 8, 8], "mlp_layer_types": FIRST_DENSE}
EVERY_SECOND = ["linear_attention", "full_attention"] * 2
EVERY_EIGHTH = [*["linear_attention"] * 7, "full_attention"]
QWEN4 = {"ple_layer_ids": [1], "linear_value_head_dim": 16, "indexer_head_dim": 64}
QWEN4["rope_parameters"] = DEFAULT_ROPE | {"partial_rotary_factor": 0.25}
# By GGUF's name: the model that is converted. llama.cpp reads no biases of some, and no embedding as the output layer.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": family("Llama 3.1"),
    "exaone": family("EXAONE 3.5", head_dim=8, rope_parameters=DEFAULT_ROPE),
    "xverse": family("XVERSE"),
    "jais2": family("Jais 2"),
    "deci": family("Llama-Nemotron Super", head_dim=8),
    "exaone-moe": family("K-EXAONE", **FOUR_LAYERS, n_group=1, topk_group=1, mlp_layer_types=FIRST_DENSE, **UNTIED),
    "afmoe": family("Trinity", **FOUR_LAYERS),
    "hy_v3": family("HY3"),
    "mellum": family(
        "Mellum 2",
        **FOUR_LAYERS,
        norm_topk_prob=True,
        mlp_layer_types=["sparse"] * 4,
        rope_parameters={"sliding_attention": DEFAULT_ROPE, "full_attention": YARN_ROPE},
        **UNTIED,
    ),
    "cohere2moe": family(
        "Cohere2 with experts", **FOUR_LAYERS, expert_selection_fn="sigmoid", mlp_layer_types=FIRST_DENSE
    ),
    "mistral3": family("Ministral 3", rope_parameters=TEMPERATURE_ROPE | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    "qwen2": family("Qwen2"),
    "qwen2moe": ("Qwen2MoeForCausalLM", QWEN_EXPERTS | UNTIED | {"shared_expert_intermediate_size": 40}),
    "qwen3": family("Qwen3"),
    "qwen3moe": family("Qwen3-MoE"),
    "qwen3vl": family("Qwen3", **WIDE_HEADS),
    "qwen3vlmoe": family("Qwen3-MoE", **WIDE_HEADS),
    "qwen3next": ("Qwen3NextForCausalLM", HYBRID_WITH_EXPERTS | {"norm_topk_prob": True}),
    "qwen35": ("Qwen3_5ForCausalLM", HYBRID | WIDE_HEADS),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", HYBRID_WITH_EXPERTS | WIDE_HEADS),
    "qwen4exp": family("Qwen 4", **QWEN4, **UNTIED, **WIDE_HEADS),
    "lfm2": family("LFM2", conv_bias=False),
    "lfm2moe": family("LFM2 with experts"),
    "mamba": family("Mamba", intermediate_size=64),
    "jamba": family("Jamba with experts", mamba_proj_bias=False),
    "mamba2": family("Mamba2"),
    "granitehybrid": family("Granite 4", num_experts_per_tok=0, shared_intermediate_size=64),
    "falcon-h1": family("Falcon-H1 with norms", mamba_norm_before_gate=False, **UNTIED),
    "nemotron_h": family("Nemotron-H"),
    "nemotron_h_moe": family("Nemotron 3"),
    "gemma": family("Gemma"),
    "gemma2": family("Gemma 2", query_pre_attn_scalar=16, sliding_window=4096),
    "gemma3": family("Gemma 3", num_hidden_layers=6, layer_types=EVERY_SIXTH, query_pre_attn_scalar=16),
    "gemma3n": family("Gemma 3n", altup_num_inputs=4),
    "gemma4": family("Gemma 4 E2B", num_kv_shared_layers=2, initializer_range=0.03),
    "phi3": family("Phi-3"),
    "falcon": family("Falcon 40B", ffn_hidden_size=128),
    "starcoder2": family("StarCoder2"),
    "olmo2": family("OLMo 2", attention_bias=False),
    "exaone4": family("EXAONE 4 1.2B"),
    "seed_oss": family("Seed-OSS", mlp_bias=False),
    "ernie4_5": family("ERNIE 4.5", use_bias=False),
    "paddleocr": family("Llama", **WIDE_HEADS),
    "command-r": family("Command R", attention_bias=False),
    "cohere2": family("Command R7B", num_hidden_layers=4, layer_types=EVERY_FOURTH, rotary_pct=1.0),
    "phi2": family("Phi-2", num_key_value_heads=4, intermediate_size=128),
    "stablelm": family("StableLM"),
    "granite": family("Granite"),
    "granitemoe": family("Granite MoE with a shared expert"),
    "granite_swa": family("Granite SWA", layer_rope_theta=[0, 10000.0, 10000.0], no_rope_layers=[0, 1, 1]),
    "arcee": family("Arcee", attention_bias=False, mlp_bias=False),
    "smollm3": family("SmolLM3", num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0]),
    "glm4": family("GLM-4-0414"),
    "chatglm": family("ChatGLM3", head_dim=8),
    "nemotron": family("Nemotron"),
    "gptneox": family("Pythia"),
    "gpt2": family("GPT-2", n_ctx=512),
    "starcoder": family("StarCoder"),
    "bloom": family("BLOOM"),
    "mpt": family("MPT", attn_config={"clip_qkv": 0.7, "alibi_bias_max": 8}),
    "deepseek2": family(
        "DeepSeek-V3", scoring_func="sigmoid", n_group=1, topk_group=1, rope_parameters=DEFAULT_ROPE, **UNTIED
    ),
    "hunyuan-dense": family("Hunyuan", rope_parameters=DEFAULT_ROPE, attention_bias=False),
    "hunyuan-moe": family(
        "Hunyuan A13B", moe_intermediate_size=[40, 40], moe_topk=[2, 2], num_shared_expert=[1, 1], attention_bias=False
    ),
    "olmoe": family("OLMoE", num_key_value_heads=4, **UNTIED),
    "ernie4_5-moe": family("ERNIE 4.5 with experts", moe_num_shared_experts=1, moe_intermediate_size=32),
    "deepseek": family("DeepSeek-MoE", num_key_value_heads=4),
    "bailingmoe": family("Ling-lite", num_key_value_heads=4, mlp_only_layers=[]),
    "bailingmoe2": family("Ling 2", head_dim=8, n_group=1, topk_group=1, n_shared_experts=1),
    "bailingmoe3": family("Ling 3.0", n_group=1, topk_group=1, layer_group_size=2, layer_types=EVERY_SECOND, **UNTIED),
    "dots1": family("dots.llm1", scoring_func="sigmoid", num_key_value_heads=4, n_group=1, topk_group=1, **UNTIED),
    "glm4moe": family("GLM-4.5", n_group=1, topk_group=1),
    "minimax-m2": family("MiniMax-M2", rotary_dim=8, scoring_func="sigmoid", **UNTIED),
    "minimax-m3": family("MiniMax-M3", shared_intermediate_size=24, **UNTIED),
    "gpt-oss": family("GPT-OSS", **UNTIED),
    "deepseek32": family(
        "DeepSeek-V3.2", index_head_dim=64, scoring_func="sigmoid", rope_parameters=DEFAULT_ROPE, **UNTIED
    ),
    "glm-dsa": family("GLM-5", index_head_dim=64, **UNTIED),
    "hy_v4": family("HY4", index_head_dim=64, **UNTIED),
    "mistral4": family("Mistral Small 4", n_group=1, topk_group=1, rope_parameters=DEFAULT_ROPE, **UNTIED),
    "minicpm3": family("MiniCPM3", v_head_dim=8, dim_model_base=256, scale_emb=12, rms_norm_eps=1e-6, **UNTIED),
    "kimi-linear": family("Kimi Linear", rms_norm_eps=1e-6),
    "minimax-01": family("MiniMax-Text-01", num_hidden_layers=8, layer_types=EVERY_EIGHTH, rms_norm_eps=1e-6),
    "muse-glimmer": family("Muse Glimmer", **UNTIED),
    "laguna": family("Laguna", num_hidden_layers=4, **LAGUNA_LAYERS),
    "step35": family("Step 3.5"),
    "olmo": family("OLMo", attention_bias=False),
    "minicpm": family("MiniCPM"),
    "mimo2": family("MiMo-V2-Flash"),
    "phimoe": family(
        "Phi-3.5-MoE with longrope", attention_bias=True, lm_head_bias=True, rope_parameters=PHIMOE_ROPE, **UNTIED
    ),
    "dbrx": family("DBRX"),
    "apertus": family("Apertus"),
    "baichuan": family("Baichuan 7B", num_hidden_layers=32),  # by which llama.cpp knows that it rotates
    "qwen": family("Qwen"),
    "llama4": family("Llama 4", attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1),
}
# Further models of an architecture, which the name begins with.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek2 with softmax": family(
        "DeepSeek-V2", n_group=1, topk_group=1, topk_method="greedy", rope_parameters=DEFAULT_ROPE, **UNTIED
    ),
    "olmo2 with windows": family(
        "OLMo 3", attention_bias=False, num_hidden_layers=4, layer_types=EVERY_FOURTH, **UNTIED
    ),
    "mamba with norms": family("Falcon Mamba", intermediate_size=64, use_bias=False, mixer_rms_eps=1e-5),
    "baichuan with ALiBi": family("Baichuan 13B", num_hidden_layers=40),
    "gemma4 whose keys are values": family("Gemma 4 31B", initializer_range=0.03),
    "gemma4 with experts": family("Gemma 4 26B", initializer_range=0.03),
    "granite_swa with experts": family(
        "Granite SWA with experts", layer_rope_theta=[1e4, 0, 1e4], no_rope_layers=[1, 0, 1]
    ),
    "laguna with wide gates": family("Laguna M", num_hidden_layers=4, **LAGUNA_LAYERS),
}
# Published with code of their own, of which the converter needs the config alone.
PUBLISHERS = {
    "exaone": published.exaone,
    "xverse": published.xverse,
    "deci": published.decilm,
    "baichuan": published.baichuan,
    "baichuan with ALiBi": published.baichuan_alibi,
    "qwen": published.qwen,
    "kimi-linear": published.kimi_linear,
    "minimax-01": published.minimax,
    "deepseek": published.deepseek_moe,
    "bailingmoe": published.ling,
    "chatglm": published.chatglm,
    "bailingmoe2": published.ling2,
    "step35": published.step,
    "bailingmoe3": published.ling3,
    "hy_v4": published.hy4,
    "minimax-m3": published.minimax_m3,
    "minicpm": published.minicpm,
    "paddleocr": published.paddleocr_vl,
    "qwen3vl": published.qwen3_vl,
    "qwen3vlmoe": published.qwen3_vl,
}
# Published with code of its own, which the converter runs.
NOT_CONVERTED = {"internlm2"}
# llama.cpp cuts activations of Gemma 3n by another variance (one less than the number of channels), and always of the
# first ten layers; its Phi-3.5-MoE has no LayerNorm and no SparseMixer. They, and the latest
# architectures, are compared with `transformers`.
BY_TRANSFORMERS = {"gemma3n", "phimoe"}
BY_TRANSFORMERS |= {"afmoe", "cohere2moe", "deci", "exaone", "exaone-moe", "hy_v3", "jais2", "mellum", "xverse"}
# In llama.cpp a rotation of three axes is rounded more, and with a cache in float32 a token sees every block.
BY_TRANSFORMERS |= {"paddleocr", "qwen3vl", "qwen3vlmoe", "minimax-m3", "qwen4exp"}
FORWARDS = {"deci": published.decilm_forward}
# Of these test_gguf_towers.py compares texts, too.
WITH_TOWERS = {"qwen2vl"}
# Of these test_gguf_llama_cpp.py compares vectors.
ENCODERS = {"bert": "Bert", "nomic-bert": "NomicBert", "jina-bert-v2": "JinaBert", "modern-bert": "ModernBert"}
ENCODERS |= {"nomic-bert-moe": "NomicBert", "eurobert": "EuroBert", "gemma-embedding": "Gemma3Text"}
# Exact here for the last three, as in `transformers`; in llama.cpp always approximated by a hyperbolic tangent.
GELU = {"gemma", "gemma2", "gemma3", "gemma4", "starcoder2", "starcoder", "gpt2", "phi2", "bloom"}
GELU |= {"falcon", "gptneox", "mpt"}


@pytest.mark.alike(max_cases=2)
@pytest.mark.parametrize("name", [*CASES, *VARIANTS])
def test_logits_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    require_llama_cpp()
    architecture, overrides = (CASES | VARIANTS)[name]
    source = make_small(tmp_path / "source", architecture, **overrides)
    reference = (
        logits_of_transformers(architecture, source, FORWARDS.get(name, reference_forward))
        if name in BY_TRANSFORMERS
        else None
    )
    PUBLISHERS.get(name, published.as_is)(source)
    file = converted(source, tmp_path / "model.gguf")
    if reference is None:
        reference = logits_of_llama_cpp(file, tmp_path / "logits.npy", PROMPT)
    with TokenEngine(file) as engine:
        _, native = engine.generate(PROMPT, 1, "all")
    assert relative_error(native, reference) < (WITH_GELU if name.split()[0] in GELU else TOLERANCE)


def test_gpt_oss_keeps_the_mxfp4_blocks_that_it_is_published_in(tmp_path: Path) -> None:
    """llama.cpp rounds what it multiplies such blocks with to 8 bits, and so does the engine."""
    require_llama_cpp()
    case = FAMILIES["GPT-OSS as published"]
    source = make_small(tmp_path / "source", case.architecture, **case.overrides | UNTIED)
    case.publish(source)
    file = converted(source, tmp_path / "model.gguf")
    assert any(tensor.dtype == "MXFP4" for tensor in read_files([file]).tensors.values())
    reference = logits_of_llama_cpp(file, tmp_path / "logits.npy", PROMPT)
    with TokenEngine(file) as engine:
        _, native = engine.generate(PROMPT, 1, "all")
    assert relative_error(native, reference) < WITH_CODES


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.BF16], ids=str)
def test_a_table_of_ngrams_stays_in_its_file_and_is_decoded_by_row(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    require_llama_cpp()
    architecture, overrides = CASES["qwen4exp"]
    source = make_small(tmp_path / "source", architecture, **overrides | {"ple_embed_dim": 128})
    whole = gguf.GGUFReader(converted(source, tmp_path / "whole.gguf"))
    file = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen4exp")
    for field in whole.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            file.add_key_value(field.name, field.contents(), field.types[0], sub_type=field.types[-1])
    for tensor in whole.tensors:
        is_table = tensor.name == "per_layer_token_embd.weight"
        data = quantize(tensor.data, kind) if is_table else tensor.data
        file.add_tensor(tensor.name, data, raw_dtype=kind if is_table else None)
        if is_table:
            rows = torch.from_numpy(dequantize(data, kind).copy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    stored = load_file(source / "model.safetensors")
    shards = sorted(name for name in stored if ".ngram_embedding.shard_" in name)
    stored |= dict(zip(shards, rows.split([len(stored[name]) for name in shards]), strict=True))
    save_file(stored, source / "model.safetensors", metadata={"format": "pt"})
    with TokenEngine(tmp_path / "model.gguf") as engine:
        _, native = engine.generate(PROMPT, 1, "all")
    assert relative_error(native, logits_of_transformers(architecture, source)) < 1e-4


def test_every_architecture_is_compared() -> None:
    assert set(CASES) | NOT_CONVERTED | WITH_TOWERS | set(ENCODERS) == set(ARCHITECTURES)
    assert not set(CASES) & set(NOT_CONVERTED)


def converted(source: Path, file: Path, outtype: str = "f32") -> Path:
    """Return a checkpoint as llama.cpp's converter writes it."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    # As configs were before version 5 of `transformers`.
    if config["model_type"] == "gpt_neox":
        config["rotary_pct"] = config["rope_parameters"]["partial_rotary_factor"]
    if config["model_type"] == "mpt":
        config["architectures"] = ["MPTForCausalLM"]
    if config["model_type"] == "granitemoehybrid":
        names = {"full_attention": "attention", "linear_attention": "mamba"}
        config["layer_types"] = [names[kind] for kind in config["layer_types"]]
    if config["model_type"] == "nemotron_h":
        kinds = config["layers_block_type"]
        config["hybrid_override_pattern"] = "".join(NEMOTRON_LETTERS[kind] for kind in kinds)
        config["left_out"] = [] if "moe" in kinds else NEMOTRON_EXPERTS
    config |= AS_PUBLISHED.get(config["model_type"], lambda config: {})(config)
    if config["model_type"].startswith("gemma") and "text_config" not in config:
        give_every_row_a_token(source, config["vocab_size"])
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    options = WITHOUT_DRAFTS if config["model_type"] in HAVE_DRAFTS else ()
    convert(source, file, outtype, *options)
    return file


def kimi_linear(config: dict[str, Any]) -> dict[str, Any]:
    """Return Kimi Linear's published fields: the layers with attention by number, from 1 on."""
    full = [layer for layer, kind in enumerate(config["layer_types"], start=1) if kind == "full_attention"]
    fields = {"full_attn_layers": full, "head_dim": config["linear_head_dim"]}
    dense = config["mlp_layer_types"].index("sparse")
    return {
        "linear_attn_config": fields | {"short_conv_kernel_size": config["linear_conv_kernel_dim"]},
        "first_k_dense_replace": dense,
        "moe_router_activation_func": "sigmoid",
    }


def ling3(config: dict[str, Any]) -> dict[str, Any]:
    """Return Ling 3.0's published fields."""
    return {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "gated_attention_proj_granularity_type": "head_wise",
        "head_dim": config["linear_head_dim"],
        "moe_shared_expert_intermediate_size": config["moe_intermediate_size"],
        "no_kda_lora": True,
        "score_function": "sigmoid",
        "norm_topk_prob": True,
    }


def mimo_v2_flash(config: dict[str, Any]) -> dict[str, Any]:
    """Return MiMo-V2-Flash's published fields."""
    full, sliding = (config["rope_parameters"][kind] for kind in ("full_attention", "sliding_attention"))
    return {
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in config["layer_types"]],
        "layernorm_epsilon": config["rms_norm_eps"],
        "left_out": ["rope_parameters"],
        "partial_rotary_factor": full["partial_rotary_factor"],
        "rope_theta": full["rope_theta"],
        "swa_head_dim": config["head_dim"],
        "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "swa_rope_theta": sliding["rope_theta"],
        "swa_v_head_dim": config["v_head_dim"],
        "topk_method": "noaux_tc",
    }


def minimax(config: dict[str, Any]) -> dict[str, Any]:
    """Return MiniMax-Text-01's published fields."""
    halves = {"full_attention": "full_attn", "linear_attention": "linear_attn", "mlp": "mlp"}
    factors = {
        f"layernorm_{half}_{kind}": config[f"{name}_{kind}_factor"]
        for half, name in halves.items()
        for kind in ("alpha", "beta")
    }
    turning = config["rope_parameters"].get("partial_rotary_factor", 1.0)
    heads = config["hidden_size"] // config["num_attention_heads"]
    return factors | {"architectures": ["MiniMaxText01ForCausalLM"], "rotary_dim": int(heads * turning)}


def minimax_m3(config: dict[str, Any]) -> dict[str, Any]:
    """Return MiniMax-M3's published fields of index heads, of partial rotation and of experts."""
    turning = config["rope_parameters"]["partial_rotary_factor"]
    return {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "moe_layer_freq": [int(kind == "sparse") for kind in config["mlp_layer_types"]],
        "n_shared_experts": 1,
        "rotary_dim": int(config["head_dim"] * turning),
        "scoring_func": "sigmoid",
        "sparse_attention_config": {
            "sparse_num_index_heads": config["index_n_heads"],
            "sparse_index_dim": config["index_head_dim"],
            "sparse_topk_blocks": config["index_topk_blocks"],
            "sparse_block_size": config["index_block_size"],
            "sparse_local_block": config["index_local_blocks"],
        },
    }


def step(config: dict[str, Any]) -> dict[str, Any]:
    """Return Step 3.5's published fields, some of which have a value for each layer."""
    ropes = [config["rope_parameters"][kind] for kind in config["layer_types"]]
    scaling = config["rope_parameters"]["full_attention"]
    sparse = [str(layer) for layer, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"]
    return {
        "attention_other_setting": {"num_attention_heads": config["num_sliding_attention_heads"]},
        "left_out": ["rope_parameters", "per_layer_config"],
        "moe_layers_enum": ",".join(sparse),
        "moe_num_experts": config["n_routed_experts"],
        "moe_top_k": config["num_experts_per_tok"],
        "norm_expert_weight": True,
        "num_attention_groups": config["num_key_value_heads"],
        "partial_rotary_factors": [rope["partial_rotary_factor"] for rope in ropes],
        "rope_scaling": {name: value for name, value in scaling.items() if name != "rope_theta"},
        "rope_theta": [rope["rope_theta"] for rope in ropes],
    }


AS_PUBLISHED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "exaone": lambda config: {"rms_norm_eps": config["layer_norm_epsilon"]},
    "bailing_hybrid": ling3,
    "kimi_linear": kimi_linear,
    "mimo_v2_flash": mimo_v2_flash,
    "minimax": minimax,
    "minimax_m3": minimax_m3,
    "mistral4": lambda config: {"architectures": ["Mistral3ForConditionalGeneration"]},
    "qwen4_exp_text": lambda config: {
        "layer_types": [kind.replace("indexed", "full") for kind in config["layer_types"]]
    },
    "step3p5": step,
    "phimoe": lambda config: {"architectures": ["PhiMoEForCausalLM"]},
    "qwen": lambda config: {"rms_norm_eps": config["layer_norm_epsilon"]},  # which its converter no longer writes
}


def logits_of_transformers(
    architecture: str, source: Path, forward: Callable[[Any, list[int]], torch.Tensor] = reference_forward
) -> torch.Tensor:
    """Return the logits of each token of the prompt in `transformers`."""
    model = getattr(transformers, architecture).from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        return forward(model, PROMPT)


def give_every_row_a_token(source: Path, rows: int) -> None:
    """Let a tokenizer have a token for each row of the embedding: of Gemma's, the converter leaves out the others."""
    file = source / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    for token in range(len(vocabulary) + len(tokenizer["added_tokens"]), rows):
        vocabulary[f"<row {token}>"] = token
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
