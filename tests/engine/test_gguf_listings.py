"""The metadata of published GGUF files, as printed by loaders: a tiny file with the same keys, against `transformers`.

``gguf_listings.json`` has the keys of each, without arrays of the tokenizer. Sizes are shrunk; all other values stay,
and the config of `transformers` that they mean is written here by hand.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Gemma4TextConfig, GptOssConfig

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.model_metadata.sampling_defaults import AUTO, sampling_defaults
from lmdeploy.paths import locate_model
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.gguf.header import GgufTensor
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.gguf.unpacked import config_of
from tests.engine.test_gguf_models import GATED_DELTA_SIZES, PHI3, PROMPT, TOLERANCE, logits_of_transformers
from tests.support.expert_models import DEEPSEEK, EXPERTS, QWEN_EXPERTS
from tests.support.gguf_files import byte_level_metadata, write_gguf, write_metadata
from tests.support.hybrid_models import GATED_DELTA
from tests.support.tiny_models import LLAMA3_ROPE, make_small
from tests.support.token_engine import TokenEngine, relative_error

LISTINGS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "gguf_listings.json").read_text(encoding="utf-8")
)


def rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | more}


def yarn(theta: float, factor: float, original: int = 4096, **more: Any) -> dict[str, Any]:
    return rope(theta, rope_type="yarn", factor=factor, original_max_position_embeddings=original, **more)


def long_rope(pairs: int) -> dict[str, Any]:
    """Return longrope of which the factor of cos and sin is that of 128K after 4K, as the files have it."""
    factors = [1.0 + pair / 4 for pair in range(pairs)]
    scaling = {"short_factor": factors, "long_factor": [2 * factor for factor in factors], "attention_factor": 1.190238}
    return rope(10000.0, rope_type="longrope", original_max_position_embeddings=4096, **scaling)


def gemma3(layers: int, full: dict[str, Any]) -> dict[str, Any]:
    """Return Gemma 3 with its sixth layer that sees everything."""
    local = {"rope_type": "default", "rope_theta": 10000.0}
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)]
    ropes = {"full_attention": full["rope_parameters"], "sliding_attention": local}
    fields = {"layer_types": kinds, "num_hidden_layers": layers, "rope_parameters": ropes, "query_pre_attn_scalar": 16}
    return WIDE | fields | {"rms_norm_eps": 1e-6}


EPS = {"rms_norm_eps": 1e-6}
WIDE = {"head_dim": 16}
NO_WINDOW = {"sliding_window": None}
QWEN = WIDE | EPS | rope(1e6)
QWEN_MOE = QWEN_EXPERTS | WIDE | EPS | {"norm_topk_prob": True}
QWEN_COUNTS = {"expert_count": 9, "expert_used_count": 3, "expert_feed_forward_length": 24}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
OLDER_DEEPSEEK = {
    "attention.kv_lora_rank": DEEPSEEK["kv_lora_rank"],
    "attention.q_lora_rank": DEEPSEEK["q_lora_rank"],
    "attention.key_length": DEEPSEEK["qk_nope_head_dim"] + DEEPSEEK["qk_rope_head_dim"],
    "attention.value_length": DEEPSEEK["v_head_dim"],
    "rope.dimension_count": DEEPSEEK["qk_rope_head_dim"],
    "expert_count": DEEPSEEK["n_routed_experts"],
    "expert_used_count": DEEPSEEK["num_experts_per_tok"],
    "expert_feed_forward_length": DEEPSEEK["moe_intermediate_size"],
    "expert_shared_count": DEEPSEEK["n_shared_experts"],
    "leading_dense_block_count": DEEPSEEK["first_k_dense_replace"],
}
V2_ROPE = yarn(1e4, 40.0, mscale=0.707, mscale_all_dim=0.707)
V3_ROPE = yarn(1e4, 40.0, mscale=1.0, mscale_all_dim=1.0)
V2 = {"q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False, "routed_scaling_factor": 1.0}
V3 = {"norm_topk_prob": True, "routed_scaling_factor": 2.5}
EVERY_FOURTH = {"layer_types": [*["linear_attention"] * 3, "full_attention"]}
PARTIAL = {"partial_rotary_factor": 0.5}
# By listing: the architecture of `transformers`, fields of its config, sizes that the file has under other names.
SERVED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "DeepSeek-Coder-V2-Lite-Instruct-Q4_K_M": (
        "DeepseekV2ForCausalLM", DEEPSEEK | EPS | ONE_GROUP | V2 | V2_ROPE, OLDER_DEEPSEEK,
    ),
    "DeepSeek-R1-F16": ("DeepseekV3ForCausalLM", DEEPSEEK | EPS | ONE_GROUP | V3 | V3_ROPE, OLDER_DEEPSEEK),
    "Devstral-2-123B-Instruct-2512": (
        "LlamaForCausalLM",
        WIDE | {"rms_norm_eps": 1e-5} | yarn(1e6, 64.0, beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0),
        {},
    ),
    "Meta_Llama_3.1_8b_it-f16-iMat-Q5_K_S_q4_v6": (
        "LlamaForCausalLM", {"rms_norm_eps": 1e-5, "rope_parameters": LLAMA3_ROPE | {"rope_theta": 5e5}}, {},
    ),
    "Phi-3-mini-4k-instruct-q4": ("Phi3ForCausalLM", PHI3 | {"rms_norm_eps": 1e-5}, {}),
    "Phi-4-mini-instruct-Q4_K_L": ("Phi3ForCausalLM", PHI3 | {"rms_norm_eps": 1e-5} | long_rope(4), {}),
    "Phi-3-mini-128k-instruct": ("Phi3ForCausalLM", PHI3 | {"rms_norm_eps": 1e-5} | long_rope(4), {}),
    "Qwen3-235B-A22B-128K-Q4_K_M": ("Qwen3MoeForCausalLM", QWEN_MOE | yarn(1e6, 4.0, 32768), QWEN_COUNTS),
    "Qwen3-235B-A22B-Q8_0": ("Qwen3MoeForCausalLM", QWEN_MOE | rope(1e6), QWEN_COUNTS),
    "Qwen3-30B-A3B-Q6_K_L": ("Qwen3MoeForCausalLM", QWEN_MOE | rope(1e6), QWEN_COUNTS),
    "Qwen3-32B-UD-Q5_K_XL": ("Qwen3ForCausalLM", QWEN, {}),
    "Qwen3.6-27B-UD-Q4_K_XL": (
        "Qwen3_5ForCausalLM",
        GATED_DELTA | EVERY_FOURTH | EPS | rope(1e7, **PARTIAL),
        GATED_DELTA_SIZES | {"block_count": 5, "rope.dimension_count": 8},  # with the block of the next token
    ),
    "THUDM_GLM-Z1-32B-0414-IQ4_XS": (
        "Glm4ForCausalLM", WIDE | {"rms_norm_eps": 1e-5, "pad_token_id": 0} | rope(1e4, **PARTIAL), {},
    ),
    "gemma-3-270m": ("Gemma3ForCausalLM", gemma3(6, rope(1e6)) | {"sliding_window": 24}, {}),
    "google_gemma-3-1b-it-Q8_0": ("Gemma3ForCausalLM", gemma3(7, rope(1e6)) | {"sliding_window": 24}, {}),
    "gemma-3-27b-it-Q4_0": (
        "Gemma3ForCausalLM", gemma3(6, rope(1e6, rope_type="linear", factor=8.0)) | {"sliding_window": 24}, {},
    ),
    "gritlm-7b_q4_1": ("LlamaForCausalLM", {"rms_norm_eps": 1e-5} | rope(1e4), {}),
    "llama-2-7b.Q4_0": ("LlamaForCausalLM", {"rms_norm_eps": 1e-5}, {}),
    "Meta-Llama-3-8B-Instruct": ("LlamaForCausalLM", {"rms_norm_eps": 1e-5} | rope(5e5), {}),
    "Mistral-7B-Instruct-v0.2": ("MistralForCausalLM", NO_WINDOW | {"rms_norm_eps": 1e-5}, {}),
    "Mixtral-8x7B-Instruct-v0.1": (
        "MixtralForCausalLM",
        EXPERTS | NO_WINDOW | {"rms_norm_eps": 1e-5} | rope(1e6),
        {"expert_count": 6, "expert_used_count": 2},
    ),
    "Qwen2.5-0.5B-Instruct": ("Qwen2ForCausalLM", EPS | rope(1e6), {}),
    "c4ai-command-r-v01": (
        "CohereForCausalLM", {"logit_scale": 0.0625, "layer_norm_eps": 1e-5, "pad_token_id": 0} | rope(8e6), {},
    ),
    "gemma-2-2b-it": (
        "Gemma2ForCausalLM", WIDE | EPS | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0}, {},
    ),
    "gemma-2b-it": ("GemmaForCausalLM", WIDE | EPS, {}),
}  # fmt: skip
REJECTED = {
    # The listing has no numbers of heads, which differ from layer to layer.
    "Llama-3_1-Nemotron-Ultra-253B-v1-UD-Q4_K_XL": "its metadata lack deci.attention.head_count",
    "ggml-model-i2_s": "GGUF files of architecture bitnet-b1.58 are not read",
    "ggml-model-iq2_bn": "GGUF files of architecture bitnet-25 are not read",
    "llama-2-7b-chat": "its tokenizer is SentencePiece's, but tokenizer.ggml.model says gpt2",
}
# Listings that other tests compare, for want of a checkpoint that is written as these files are.
ELSEWHERE = {"gemma-4-E2B-it-Q4_K_M", "gpt-oss-20b-mxfp4", "all-MiniLM-L6-v2"}


def keys_of(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the architecture of a listing, its keys, and those of tokenizer and file."""
    listed = dict(LISTINGS[name])
    whole = {key: listed.pop(key) for key in list(listed) if key.startswith(("tokenizer.", "general."))}
    return listed.pop("architecture"), listed, whole


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a checkpoint and the file that has the keys of a listing."""
    published, overrides, extra = SERVED[name]
    architecture, listed, whole = keys_of(name)
    source, path = make_small(folder / "source", published, **overrides), folder / "model.gguf"
    tokenizer = byte_level_metadata(source) | whole
    tokenizer["tokenizer.ggml.scores"] = [0.0] * len(tokenizer["tokenizer.ggml.tokens"])
    write_gguf(source, path, architecture, extra=extra, listed=listed, tokenizer=tokenizer)
    return source, path


@pytest.mark.alike(max_cases=8)
@pytest.mark.parametrize("name", SERVED)
def test_a_file_with_the_keys_of_a_published_one_answers_as_transformers(name: str, tmp_path: Path) -> None:
    source, path = write(name, tmp_path)
    with TokenEngine(path) as engine:
        response, logits = engine.generate(PROMPT, 4, "all")
    assert relative_error(logits, logits_of_transformers(source, PROMPT + response[:-1])) < TOLERANCE


@pytest.mark.parametrize("name", REJECTED)
def test_a_published_file_that_is_not_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    architecture, listed, whole = keys_of(name)
    tokens = {"tokenizer.ggml.tokens": ["<unk>", "\u2581", "\u2581t"], "tokenizer.ggml.merges": ["\u2581 t"]}
    keys = {f"{architecture}.{key}": value for key, value in listed.items() if value != "list"}
    path = write_metadata(tmp_path / "model.gguf", architecture, keys | whole | tokens)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=REJECTED[name]):
        resolve(path)


def test_every_listing_is_tried() -> None:
    assert set(SERVED) | set(REJECTED) | ELSEWHERE == set(LISTINGS)


def metadata_of(name: str, **lists: list[Any]) -> Metadata:
    architecture, listed, _ = keys_of(name)
    values = {f"{architecture}.{key}": lists.get(key.rpartition(".")[2], value) for key, value in listed.items()}
    tensors = {"token_embd.weight": GgufTensor("F32", (64, 8), 0, 0)}
    return Metadata({"general.architecture": architecture} | values, tensors, {})


def test_lists_for_each_layer_are_read_where_numbers_are_expected() -> None:
    published = Gemma4TextConfig(num_hidden_layers=35).to_dict()
    sizes = [6144] * 15 + [12288] * 20
    config = config_of(
        metadata_of(
            "gemma-4-E2B-it-Q4_K_M",
            feed_forward_length=sizes,
            sliding_window_pattern=[kind == "sliding_attention" for kind in published["layer_types"]],
        )
    )
    names = ("num_hidden_layers", "layer_types", "head_dim", "hidden_size_per_layer_input")
    assert {name: config[name] for name in names} == {name: published[name] for name in names}
    assert config["global_head_dim"] == 512
    assert (config["intermediate_size"], config["use_double_wide_mlp"]) == (6144, True)
    # The same number for each layer, and windows as Gemma 3's newer files list them.
    metadata = metadata_of("gemma-3-270m", feed_forward_length=[2048] * 18, head_count_kv=[1] * 18)
    pattern = [bool(layer % 3) for layer in range(18)]
    values = {**metadata.values, "gemma3.attention.sliding_window_pattern": pattern}
    config = config_of(Metadata(values, metadata.tensors, {}))
    assert (config["intermediate_size"], config["num_key_value_heads"]) == (2048, 1)
    assert [kind == "sliding_attention" for kind in config["layer_types"]] == pattern


def test_gpt_oss_is_described_as_it_is_published() -> None:
    published, config = GptOssConfig(num_hidden_layers=24), config_of(metadata_of("gpt-oss-20b-mxfp4"))
    names = ("num_experts_per_tok", "sliding_window", "head_dim", "num_key_value_heads", "layer_types")
    assert {name: config[name] for name in names} == {name: getattr(published, name) for name in names}
    reference = {name: published.rope_parameters[name] for name in config["rope_parameters"]}
    assert config["rope_parameters"] == reference


UNUSED = {
    "rope.scaling.yarn_ext_factor": 0.5,
    "rope.scaling.attn_factor": 1.2,
    "rope.freq_base_swa": 10000.0,
    "attention.sliding_window": 1024,
    "attention.temperature_scale": 0.1,
    "attention.max_alibi_bias": 8.0,
    "embedding_scale": 12.0,
    "final_logit_softcapping": 30.0,
    "expert_weights_norm": True,
}
WITHOUT_EFFECT = {
    "rope.scaling.finetuned": True,
    "attention.clamp_kqv": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "embedding_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": -1.0,
    "use_parallel_residual": True,
    "vision.block_count": 27,
}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}


def with_keys(keys: dict[str, Any]) -> Metadata:
    metadata = metadata_of("Meta-Llama-3-8B-Instruct")
    more = {f"llama.{key}": value for key, value in (YARN_KEYS | keys).items()}
    return Metadata({**metadata.values, **more}, metadata.tensors, {})


@pytest.mark.parametrize("key", UNUSED)
def test_a_key_that_changes_the_computation_and_is_not_used_is_refused_by_name(key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"the GGUF key llama.{key} = {UNUSED[key]} changes what the model"):
        config_of(with_keys({key: UNUSED[key]}))


def test_keys_without_effect_change_nothing() -> None:
    assert config_of(with_keys(WITHOUT_EFFECT)) == config_of(with_keys({}))


def test_the_size_of_what_rotates_is_checked() -> None:
    with pytest.raises(ValueError, match=r"llama\.rope\.dimension_count must be 128, the size of a head, got 32"):
        config_of(with_keys({"rope.dimension_count": 32}))
    with pytest.raises(ValueError, match=r"llama\.rope\.dimension_count must be an even number <= 128, .* got 256"):
        config_of(with_keys({"rope.dimension_count": 256}))
    qwen = metadata_of("Qwen3-32B-UD-Q5_K_XL")
    config = config_of(Metadata({**qwen.values, "qwen3.rope.dimension_count": 32}, qwen.tensors, {}))
    assert config["rope_parameters"]["partial_rotary_factor"] == 0.25


def test_recommended_sampling_is_that_of_the_file(tmp_path: Path) -> None:
    _, path = write("Qwen3.6-27B-UD-Q4_K_XL", tmp_path)
    recommended = sampling_defaults(AUTO, locate_model(str(path)))
    assert {name: recommended[name] for name in ("top_k", "top_p", "temperature")} == {
        "top_k": 20,
        "top_p": pytest.approx(np.float32(0.95)),
        "temperature": 1.0,
    }
