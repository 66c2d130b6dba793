"""Mixtures of experts in GGUF files: names of experts, and configs from metadata."""

from typing import Any

from lmdeploy.turbomind.families.experts import ExpertNames, moe_of
from lmdeploy.turbomind.gguf import configs
from lmdeploy.turbomind.gguf.configs import (
    FULL,
    SLIDING,
    common,
    multipliers,
    windows,
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
def _dense_layers(metadata: Metadata) -> int:
    """Return how many of the first layers have no experts."""
    return int(metadata.get("leading_dense_block_count", 0))


def _expert_size(metadata: Metadata) -> Any:
    """Return the intermediate size of an expert: what the metadata say, or that of its tensors.

    Raises `ValueError` if the metadata name no experts.
    """
    metadata.need("expert_count")
    first = next((t for name, t in metadata.tensors.items() if name.endswith(".ffn_up_exps.weight")), None)
    return metadata.get("expert_feed_forward_length", first.shape[1] if first else None)


def _shared_size(metadata: Metadata) -> int:
    """Return the intermediate size of what every token goes to; 0: there is no such thing."""
    first = next((t for name, t in metadata.tensors.items() if name.endswith(".ffn_up_shexp.weight")), None)
    return first.shape[0] if first else 0


def deepseek_experts(metadata: Metadata) -> dict[str, Any]:
    """Return the experts in DeepSeek's names."""
    size = _expert_size(metadata)
    return {
        "n_routed_experts": metadata.need("expert_count"),
        "moe_intermediate_size": size,
        "n_shared_experts": _shared_size(metadata) // size if size else None,
        "first_k_dense_replace": _dense_layers(metadata),
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
        "routed_scaling_factor": metadata.get("expert_weights_scale", 1.0),
        "n_group": metadata.get("expert_group_count", 1),
        "topk_group": metadata.get("expert_group_used_count", 1),
    }


def olmoe(metadata: Metadata) -> dict[str, Any]:
    """OLMoE: weights of chosen experts are left as they are."""
    return common(metadata, "olmoe") | {
        "intermediate_size": _expert_size(metadata),
        "clip_qkv": metadata.get("attention.clamp_kqv"),
        "norm_topk_prob": False,
    }


def granitemoe(metadata: Metadata) -> dict[str, Any]:
    """Granite MoE, with or without a shared expert."""
    fields = common(metadata, "granitemoeshared") | multipliers(metadata)
    return fields | {
        "intermediate_size": _expert_size(metadata) or fields["intermediate_size"],
        "shared_intermediate_size": _shared_size(metadata),
    }


def granite_swa(metadata: Metadata) -> dict[str, Any]:
    """Granite with windows, dense or with experts."""
    fields, layers = common(metadata, "granite_swa") | multipliers(metadata), metadata.layer_count or 0
    rotates, base = metadata.get("attention.rope_pattern", [True] * layers), fields["rope_parameters"]["rope_theta"]
    return fields | {
        "model_type": "granitemoe_swa" if metadata.get("expert_count") else "granite_swa",
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": windows(metadata, 4),
        "layer_rope_theta": [base if turns else 0 for turns in rotates[:layers]],
        "shared_intermediate_size": _shared_size(metadata) // 2,
        "mlp_bias": False,
    }


def ernie4_5_moe(metadata: Metadata) -> dict[str, Any]:
    """ERNIE 4.5 with experts."""
    fields, size = common(metadata, "ernie4_5_moe"), _expert_size(metadata)
    return fields | {
        "use_bias": False,
        "moe_num_experts": metadata.need("expert_count"),
        "moe_k": metadata.need("expert_used_count"),
        "moe_intermediate_size": size,
        "moe_num_shared_experts": _shared_size(metadata) // size if size else 0,
        "moe_layer_start_index": _dense_layers(metadata),
        "moe_layer_end_index": metadata.layer_count,
        "moe_layer_interval": metadata.get("interleave_moe_layer_step", 1),
    }


def exaone_moe(metadata: Metadata) -> dict[str, Any]:
    """K-EXAONE."""
    return configs.exaone4(metadata) | {"model_type": "exaone_moe"} | deepseek_experts(metadata)


def afmoe(metadata: Metadata) -> dict[str, Any]:
    """Trinity; llama.cpp always scales its embeddings."""
    experts = deepseek_experts(metadata)
    return (
        common(metadata, "afmoe")
        | {
            "mup_enabled": True,
            "sliding_window": metadata.get("attention.sliding_window"),
            "layer_types": windows(metadata, 4),
            "num_dense_layers": experts["first_k_dense_replace"],
            "route_scale": experts["routed_scaling_factor"],
        }
        | experts
    )


def hy_v3(metadata: Metadata) -> dict[str, Any]:
    """HY3."""
    experts = deepseek_experts(metadata)
    return (
        common(metadata, "hy_v3")
        | {
            "mlp_bias": False,
            "mlp_layer_types": layer_mlps(metadata),
            "router_scaling_factor": experts["routed_scaling_factor"],
        }
        | experts
    )


def mellum(metadata: Metadata) -> dict[str, Any]:
    """Mellum 2."""
    return (
        common(metadata, "mellum")
        | configs.with_windows(metadata)
        | {
            "mlp_layer_types": layer_mlps(metadata),
            "moe_intermediate_size": _expert_size(metadata),
            "norm_topk_prob": True,
        }
    )


def layer_mlps(metadata: Metadata) -> list[str]:
    """Return the kind of MLP of each layer."""
    first, layers = _dense_layers(metadata), range(metadata.layer_count or 0)
    has_experts = [layer >= first and metadata.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in layers]
    return ["sparse" if has_them else "dense" for has_them in has_experts]


def cohere2moe(metadata: Metadata) -> dict[str, Any]:
    """North Mini Code: first layers are dense, and all of them rotate; what is shared is averaged."""
    size = metadata.get("feed_forward_length")
    expert_size = _expert_size(metadata)
    norms = "rms_norm_eps" if metadata.get("attention.layer_norm_rms_epsilon") else "layer_norm_eps"
    return common(metadata, "cohere2_moe", norms) | {
        "rms_norm_eps": metadata.get("attention.layer_norm_rms_epsilon"),
        "logit_scale": metadata.need("logit_scale"),
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": windows(metadata, 4),
        "mlp_layer_types": layer_mlps(metadata),
        "intermediate_size": expert_size,
        "prefix_dense_intermediate_size": size,
        "prefix_dense_sliding_window_pattern": 1,
        "num_shared_experts": _shared_size(metadata) // expert_size if expert_size else 0,
        "shared_expert_combination_strategy": "average",
        "expert_selection_fn": "sigmoid",
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
    }


def bailingmoe(metadata: Metadata) -> dict[str, Any]:
    """Ling and Ring with experts, version 1 and 2."""
    fields = common(metadata, metadata.architecture) | deepseek_experts(metadata)
    extra = {"norm_head": False, "use_bias": False, "use_qkv_bias": False}
    return fields | extra | {"num_experts": fields["n_routed_experts"]}


def glm4moe(metadata: Metadata) -> dict[str, Any]:
    """GLM-4.5, 4.6 and 4.7."""
    fields = common(metadata, "glm4_moe") | deepseek_experts(metadata)
    return fields | {
        "use_qk_norm": metadata.has("blk.0.attn_q_norm.weight"),
    }


def minimax_m2(metadata: Metadata) -> dict[str, Any]:
    """MiniMax-M2."""
    fields = common(metadata, "minimax_m2")
    return fields | {"intermediate_size": _expert_size(metadata)}


def minimax_m3(metadata: Metadata) -> dict[str, Any]:
    """MiniMax-M3 (text)."""
    layers = range(metadata.layer_count or 0)
    indexed = [metadata.has(f"blk.{layer}.indexer.k_proj.weight") for layer in layers]
    return (
        common(metadata, "minimax_m3")
        | deepseek_experts(metadata)
        | {
            "intermediate_size": _expert_size(metadata),
            "dense_intermediate_size": metadata.get("feed_forward_length"),
            "shared_intermediate_size": _shared_size(metadata),
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "mlp_layer_types": layer_mlps(metadata),
            "layer_types": ["minimax_m3_sparse" if sparse else FULL for sparse in indexed],
            "index_n_heads": metadata.need("attention.indexer.head_count"),
            "index_head_dim": metadata.need("attention.indexer.key_length"),
            "index_topk_blocks": metadata.need("attention.indexer.top_k"),
            "index_block_size": metadata.need("attention.indexer.block_size"),
            "index_local_blocks": metadata.get("attention.indexer.local_blocks", 1),
        }
    )


def hunyuan_moe(metadata: Metadata) -> dict[str, Any]:
    """Hunyuan A13B; the base of its rotation has the factor of the longest context already."""
    return common(metadata, "hunyuan_v1_moe") | {
        "intermediate_size": _expert_size(metadata),
        "moe_topk": metadata.need("expert_used_count"),
    }


def gpt_oss(metadata: Metadata) -> dict[str, Any]:
    """GPT-OSS: every other layer has a window, the first one among them."""
    return common(metadata, "gpt_oss") | {
        "intermediate_size": _expert_size(metadata),
        "sliding_window": metadata.get("attention.sliding_window"),
        "layer_types": windows(metadata, 2),
    }


def phimoe(metadata: Metadata) -> dict[str, Any]:
    """Phi-3.5-MoE; what it adds to router scores in training has no name in GGUF, and the published value here."""
    fields = common(metadata, "phimoe")
    if fields["rope_parameters"]["rope_type"] == "longrope":
        scaling = metadata.get("rope.scaling.attn_factor", 1.0)
        fields["rope_parameters"] |= dict.fromkeys(("short_mscale", "long_mscale"), scaling)
    return fields | {
        "sliding_window": metadata.get("attention.sliding_window") or None,
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
    kinds = windows(metadata, 1)
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
    window, layers = metadata.get("attention.sliding_window", 0), metadata.layer_count or 0
    head_dim, gate = metadata.head_dim or 1, metadata.tensors.get("blk.0.attn_gate.weight")
    turning = metadata.get("rope.dimension_count_swa", head_dim)
    counts = heads if isinstance(heads, list) else [heads] * layers
    local = {"rope_type": "default", "partial_rotary_factor": turning / head_dim}
    return fields | {
        "gating": "per-head" if gate and gate.shape[0] == counts[0] else "per-element",
        "num_attention_heads": counts[0],
        "num_attention_heads_per_layer": counts[:layers],
        "sliding_window": window or None,
        "layer_types": [SLIDING if window and layer % 4 else FULL for layer in range(layers)],
        "mlp_layer_types": layer_mlps(metadata),
        "moe_intermediate_size": _expert_size(metadata),
        "shared_expert_intermediate_size": _shared_size(metadata),
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
    kinds, rope = windows(metadata, 4), fields["rope_parameters"]
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
        "moe_intermediate_size": _expert_size(metadata),
        "share_expert_dim": _shared_size(metadata),
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
        "intermediate_size": _expert_size(metadata),
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
