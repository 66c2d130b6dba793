"""Mixtures of experts in GGUF files: names of experts, and configs from metadata."""

from operator import attrgetter
from typing import Any

from lmdeploy.turbomind.families.experts import ExpertNames, moe_of
from lmdeploy.turbomind.gguf.configs import (
    FULL,
    SLIDING,
    common,
    exaone4,
    expert_size,
    get,
    has,
    joined,
    multipliers,
    need,
    plain,
    shared_size,
    window,
    windows,
    with_windows,
)
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import ModelSpec

# Names of experts in GGUF files, and the tensors of those that names do not suffice for.
EXPERTS = ExpertNames(
    router="ffn_gate_inp",
    correction="exp_probs_b.bias",
    gate="ffn_gate.{}",
    up="ffn_up.{}",
    down="ffn_down.{}",
    shared="ffn_{}_shexp",
    shared_gate="ffn_gate_inp_shexp",
)


def joined_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer of which gate and up are one matrix (Mistral Small 4)."""
    moe, hidden = moe_of(spec), spec.hidden_size
    joined: dict[str, Expression] = {
        f"moe.experts.{e}.gate_up.weight": Load(f"{prefix}ffn_gate_up.{e}.weight", (2 * moe.intermediate_size, hidden))
        for e in range(moe.num_experts)
    }
    return EXPERTS.tensors(spec, prefix) | joined


def granite_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the same where gate and up of the shared expert are one matrix, too."""
    size, hidden = moe_of(spec).shared_intermediate_size, spec.hidden_size
    shared = {"moe.shared.gate_up.weight": Load(f"{prefix}ffn_up_shexp.weight", (2 * size, hidden))} if size else {}
    return joined_experts(spec, prefix) | shared


def biased_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer, once each is a tensor of its own (`stacks.apart`)."""
    moe, hidden = moe_of(spec), spec.hidden_size
    size = moe.intermediate_size
    engine: dict[str, Expression] = {
        "moe.router.weight": Load(f"{prefix}ffn_gate_inp.weight", (moe.num_experts, hidden)),
        "moe.router.bias": Load(f"{prefix}ffn_gate_inp.bias", (moe.num_experts,)),
    }
    for e in range(moe.num_experts):
        gate, up, down = (f"{prefix}ffn_{part}.{e}" for part in ("gate", "up", "down"))
        expert = f"moe.experts.{e}"
        engine |= {
            f"{expert}.gate_up.weight": concat(*(Load(f"{part}.weight", (size, hidden)) for part in (gate, up))),
            f"{expert}.gate_up.bias": concat(*(Load(f"{part}.bias", (size,)) for part in (gate, up))),
            f"{expert}.down.weight": Load(f"{down}.weight", (hidden, size)),
            f"{expert}.down.bias": Load(f"{down}.bias", (hidden,)),
        }
    return engine


# From the metadata of GGUF files of mixtures of experts to the config.json that the models are published with.
def shared_experts(metadata: Metadata) -> int:
    """Return how many experts are as large as what every token goes to."""
    size = expert_size(metadata)
    return shared_size(metadata) // size if size else 0


def layer_mlps(metadata: Metadata) -> list[str]:
    """Return the kind of MLP of each layer."""
    first, layers = metadata.get("leading_dense_block_count", 0), range(metadata.layer_count or 0)
    has_experts = [layer >= first and metadata.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in layers]
    return ["sparse" if has_them else "dense" for has_them in has_experts]


# Experts in DeepSeek's names.
deepseek_experts = joined(
    n_routed_experts=need("expert_count"),
    moe_intermediate_size=expert_size,
    n_shared_experts=shared_experts,
    first_k_dense_replace=get("leading_dense_block_count", 0),
    norm_topk_prob=get("expert_weights_norm", False),
    routed_scaling_factor=get("expert_weights_scale", 1.0),
    n_group=get("expert_group_count", 1),
    topk_group=get("expert_group_used_count", 1),
)
# OLMoE: weights of chosen experts are left as they are.
olmoe = plain("olmoe", intermediate_size=expert_size, clip_qkv=get("attention.clamp_kqv"), norm_topk_prob=False)
# Granite MoE, with or without a shared expert.
granitemoe = plain(
    "granitemoeshared",
    multipliers,
    intermediate_size=lambda metadata: expert_size(metadata) or metadata.of_all_layers("feed_forward_length"),
    shared_intermediate_size=shared_size,
)


def granite_swa(metadata: Metadata) -> dict[str, Any]:
    """Granite with windows, dense or with experts."""
    fields, layers = common(metadata, "granite_swa") | multipliers(metadata), metadata.layer_count or 0
    rotates, base = metadata.get("attention.rope_pattern", [True] * layers), fields["rope_parameters"]["rope_theta"]
    return fields | {
        "model_type": "granitemoe_swa" if metadata.get("expert_count") else "granite_swa",
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": windows(4)(metadata),
        "layer_rope_theta": [base if turns else 0 for turns in rotates[:layers]],
        "shared_intermediate_size": shared_size(metadata) // 2,
        "mlp_bias": False,
    }


# ERNIE 4.5 with experts.
ernie4_5_moe = plain(
    "ernie4_5_moe",
    use_bias=False,
    moe_num_experts=need("expert_count"),
    moe_k=need("expert_used_count"),
    moe_intermediate_size=expert_size,
    moe_num_shared_experts=shared_experts,
    moe_layer_start_index=get("leading_dense_block_count", 0),
    moe_layer_end_index=attrgetter("layer_count"),
    moe_layer_interval=get("interleave_moe_layer_step", 1),
)
exaone_moe = joined(exaone4, deepseek_experts, model_type="exaone_moe")  # K-EXAONE
# Trinity; llama.cpp always scales its embeddings.
afmoe = plain(
    "afmoe",
    deepseek_experts,
    mup_enabled=True,
    sliding_window=get("attention.sliding_window"),
    layer_types=windows(4),
    num_dense_layers=get("leading_dense_block_count", 0),
    route_scale=get("expert_weights_scale", 1.0),
)
hy_v3 = plain(
    "hy_v3",
    deepseek_experts,
    mlp_bias=False,
    mlp_layer_types=layer_mlps,
    router_scaling_factor=get("expert_weights_scale", 1.0),
)
# Mellum 2.
mellum = plain(
    "mellum", with_windows, mlp_layer_types=layer_mlps, moe_intermediate_size=expert_size, norm_topk_prob=True
)


def cohere2moe(metadata: Metadata) -> dict[str, Any]:
    """North Mini Code: first layers are dense, and all of them rotate; what is shared is averaged."""
    size = metadata.get("feed_forward_length")
    norms = "rms_norm_eps" if metadata.get("attention.layer_norm_rms_epsilon") else "layer_norm_eps"
    return common(metadata, "cohere2_moe", norms) | {
        "rms_norm_eps": metadata.get("attention.layer_norm_rms_epsilon"),
        "logit_scale": metadata.need("logit_scale"),
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": windows(4)(metadata),
        "mlp_layer_types": layer_mlps(metadata),
        "intermediate_size": expert_size(metadata),
        "prefix_dense_intermediate_size": size,
        "prefix_dense_sliding_window_pattern": 1,
        "num_shared_experts": shared_experts(metadata),
        "shared_expert_combination_strategy": "average",
        "expert_selection_fn": "sigmoid",
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
    }


# Ling and Ring with experts, version 1 and 2.
bailingmoe = joined(
    lambda metadata: common(metadata, metadata.architecture),
    deepseek_experts,
    norm_head=False,
    use_bias=False,
    use_qkv_bias=False,
)
# GLM-4.5, 4.6 and 4.7.
glm4moe = plain("glm4_moe", deepseek_experts, use_qk_norm=has("blk.0.attn_q_norm.weight"))


def _indexed_layers(metadata: Metadata) -> list[str]:
    layers = range(metadata.layer_count or 0)
    indexed = [metadata.has(f"blk.{layer}.indexer.k_proj.weight") for layer in layers]
    return ["minimax_m3_sparse" if sparse else FULL for sparse in indexed]


# MiniMax-M3 (text).
minimax_m3 = plain(
    "minimax_m3",
    deepseek_experts,
    intermediate_size=expert_size,
    dense_intermediate_size=get("feed_forward_length"),
    shared_intermediate_size=shared_size,
    swiglu_alpha=1.702,
    swiglu_limit=7.0,
    mlp_layer_types=layer_mlps,
    layer_types=_indexed_layers,
    index_n_heads=need("attention.indexer.head_count"),
    index_head_dim=need("attention.indexer.key_length"),
    index_topk_blocks=need("attention.indexer.top_k"),
    index_block_size=need("attention.indexer.block_size"),
    index_local_blocks=get("attention.indexer.local_blocks", 1),
)
# Hunyuan A13B; the base of its rotation has the factor of the longest context already.
hunyuan_moe = plain("hunyuan_v1_moe", intermediate_size=expert_size, moe_topk=need("expert_used_count"))
# GPT-OSS: every other layer has a window, the first one among them.
gpt_oss = plain(
    "gpt_oss",
    intermediate_size=expert_size,
    sliding_window=get("attention.sliding_window"),
    layer_types=windows(2),
)


def phimoe(metadata: Metadata) -> dict[str, Any]:
    """Phi-3.5-MoE; what it adds to router scores in training has no name in GGUF, and the published value here."""
    fields = common(metadata, "phimoe")
    if fields["rope_parameters"]["rope_type"] == "longrope":
        scaling = metadata.get("rope.scaling.attn_factor", 1.0)
        fields["rope_parameters"] |= dict.fromkeys(("short_mscale", "long_mscale"), scaling)
    return fields | {
        "sliding_window": window(metadata),
        "lm_head_bias": metadata.has("output.bias"),
        "router_jitter_noise": 0.01,
    }


def dbrx(metadata: Metadata) -> dict[str, Any]:
    """DBRX, in the names of its published config."""
    heads = metadata.need("attention.head_count")
    return {
        "model_type": "dbrx",
        "vocab_size": metadata.vocab_size,
        "d_model": metadata.need("embedding_length"),
        "n_heads": heads,
        "n_layers": metadata.layer_count,
        "max_seq_len": metadata.need("context_length"),
        "tie_word_embeddings": not metadata.has("output.weight"),
        "attn_config": {
            "kv_n_heads": metadata.get("attention.head_count_kv", heads),
            "clip_qkv": metadata.get("attention.clamp_kqv"),
            "rope_theta": metadata.get("rope.freq_base", 10000.0),
        },
        "ffn_config": {
            "ffn_hidden_size": metadata.need("feed_forward_length"),
            "moe_num_experts": metadata.need("expert_count"),
            "moe_top_k": metadata.need("expert_used_count"),
        },
    }


def mimo2(metadata: Metadata) -> dict[str, Any]:
    """MiMo-V2-Flash: layers with a window have more key/value heads, and rotate by a base of their own."""
    fields = common(metadata, "mimo_v2_flash") | deepseek_experts(metadata)
    kinds = windows(1)(metadata)
    rope = fields["rope_parameters"]
    heads = metadata.need("attention.head_count_kv")
    return fields | {
        "attention_value_scale": metadata.get("attention.value_scale"),
        "num_key_value_heads": heads[kinds.index(FULL)] if isinstance(heads, list) else heads,
        "v_head_dim": metadata.need("attention.value_length"),
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": kinds,
        "mlp_layer_types": layer_mlps(metadata),
        "norm_topk_prob": True,
        "rope_parameters": {
            FULL: rope,
            SLIDING: rope | {"rope_theta": metadata.get("rope.freq_base_swa", rope["rope_theta"])},
        },
    }


def laguna(metadata: Metadata) -> dict[str, Any]:
    """Laguna: the first of four layers sees everything."""
    fields, heads = common(metadata, "laguna"), metadata.need("attention.head_count")
    size, layers = window(metadata), metadata.layer_count or 0
    head_dim, gate = metadata.head_dim or 1, metadata.tensors.get("blk.0.attn_gate.weight")
    turning = metadata.get("rope.dimension_count_swa", head_dim)
    counts = heads if isinstance(heads, list) else [heads] * layers
    local = {"rope_type": "default", "partial_rotary_factor": turning / head_dim}
    return fields | {
        "gating": "per-head" if gate and gate.shape[0] == counts[0] else "per-element",
        "num_attention_heads": counts[0],
        "num_attention_heads_per_layer": counts[:layers],
        "sliding_window": size,
        "layer_types": [SLIDING if size and layer % 4 else FULL for layer in range(layers)],
        "mlp_layer_types": layer_mlps(metadata),
        "moe_intermediate_size": expert_size(metadata),
        "shared_expert_intermediate_size": shared_size(metadata),
        "norm_topk_prob": metadata.get("expert_weights_norm", True),
        "moe_router_logit_softcapping": 0.0,
        "moe_routed_scaling_factor": metadata.get("expert_weights_scale", 1.0),
        "rope_parameters": {
            FULL: fields["rope_parameters"],
            SLIDING: local | {"rope_theta": metadata.get("rope.freq_base_swa", 10000.0)},
        },
    }


def step35(metadata: Metadata) -> dict[str, Any]:
    """Step 3.5 and 3.7: layers with a window have more heads; half of a head turns in the others."""
    fields, heads = common(metadata, "step3p5"), metadata.need("attention.head_count")
    kinds, rope = windows(4)(metadata), fields["rope_parameters"]
    counts = heads if isinstance(heads, list) else [heads] * len(kinds)
    local = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", rope["rope_theta"])}
    return fields | {
        "mlp_bias": metadata.has("blk.0.ffn_up.bias"),
        "query_pre_attn_scalar": metadata.head_dim,
        "num_attention_heads": counts[kinds.index(FULL)] if FULL in kinds else counts[0],
        "num_sliding_attention_heads": counts[kinds.index(SLIDING)] if SLIDING in kinds else counts[0],
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": kinds,
        "mlp_layer_types": layer_mlps(metadata),
        "n_routed_experts": metadata.need("expert_count"),
        "moe_intermediate_size": expert_size(metadata),
        "share_expert_dim": shared_size(metadata),
        "norm_expert_weight": metadata.get("expert_weights_norm", False),
        "moe_router_scaling_factor": metadata.get("expert_weights_scale", 1.0),
        "swiglu_limits": metadata.get("swiglu_clamp_exp", [])[: len(kinds)],
        "swiglu_limits_shared": metadata.get("swiglu_clamp_shexp", [])[: len(kinds)],
        "rope_parameters": {FULL: rope | {"partial_rotary_factor": 0.5}, SLIDING: local},
    }


def llama4(metadata: Metadata) -> dict[str, Any]:
    """Llama 4 (text): three of four layers attend in chunks, the fourth does not rotate; queries grow in it."""
    layers, step = metadata.layer_count or 0, metadata.get("interleave_moe_layer_step", 1)
    is_large = metadata.get("expert_count") == 128  # Maverick, whose queries and keys have no norm
    full = [(layer + 1) % 4 == 0 for layer in range(layers)]
    return common(metadata, "llama4_text") | {
        "intermediate_size": expert_size(metadata),
        "intermediate_size_mlp": metadata.get("feed_forward_length"),
        "use_qk_norm": not is_large,
        "attention_chunk_size": metadata.get("attention.chunk_size", 8192),
        "no_rope_layers": [0 if whole else 1 for whole in full],
        "layer_types": [FULL if whole else "chunked_attention" for whole in full],
        "moe_layers": [layer for layer in range(layers) if (layer + 1) % step == 0],
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    }
