"""config.json from the metadata of GGUF files of recurrent and hybrid models."""

from typing import Any

from lmdeploy.turbomind.gguf.configs import FULL, common, multipliers, qwen_experts
from lmdeploy.turbomind.gguf.metadata import Metadata

_LINEAR = "linear_attention"


def gated_delta(metadata: Metadata) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5; every fourth layer has attention unless the file says which do."""
    layers, heads = metadata.layer_count or 0, metadata.need("ssm.time_step_rank")
    period = metadata.get("full_attention_interval", 4)
    recurrent = metadata.get("attention.recurrent_layers", [bool((layer + 1) % period) for layer in range(layers)])
    return {
        "layer_types": [_LINEAR if is_recurrent else FULL for is_recurrent in recurrent[:layers]],
        "linear_num_value_heads": heads,
        "linear_num_key_heads": metadata.need("ssm.group_count"),
        "linear_key_head_dim": metadata.need("ssm.state_size"),
        "linear_value_head_dim": metadata.need("ssm.inner_size") // heads,
        "linear_conv_kernel_dim": metadata.need("ssm.conv_kernel"),
    }


def gated_delta_experts(metadata: Metadata) -> dict[str, Any]:
    """The same with experts."""
    fields = gated_delta(metadata) | qwen_experts(metadata, normalizes=True)
    shared = metadata.tensors.get("blk.0.ffn_up_shexp.weight")
    size = metadata.get("expert_shared_feed_forward_length", shared.shape[0] if shared else None)
    dense = metadata.get("feed_forward_length") or fields["moe_intermediate_size"]
    return fields | {"intermediate_size": dense, "shared_expert_intermediate_size": size}


def qwen4exp(metadata: Metadata) -> dict[str, Any]:
    """Qwen 4 (text); of n-grams, the file has the numbers of their hash."""
    table, rows = metadata.tensors.get("per_layer_token_embd.weight"), metadata.get("ple.head_vocab_sizes", [])
    size, heads = metadata.get("ple.ngram_size", 0), metadata.get("ple.heads_per_ngram", 0)
    if metadata.get("ple.head_offsets", []) != [sum(rows[:head]) for head in range(len(rows))]:
        raise ValueError("qwen4exp.ple.head_offsets must be the sums of ple.head_vocab_sizes before each head")
    ngrams = {
        "layers": metadata.get("ple.layers", []),
        "size": size,
        "heads": heads,
        "width": (size - 1) * heads * metadata.get("embedding_length_per_layer_input", 0),
        "conv_kernel": metadata.get("ple.conv_kernel"),
        "end_token": metadata.get("ple.eos_token_id"),
        "multipliers": [float(number) for number in metadata.get("ple.layer_multipliers", [])],
        "head_sizes": rows,
        "table_rows": table.shape[:1] if table else [],
        "parts": 1,
    }
    return gated_delta_experts(metadata) | {
        "hc_count": metadata.need("hyper_connection.count"),
        "hc_lowrank": metadata.need("hyper_connection.low_rank"),
        "indexer_budget": metadata.need("attention.indexer.top_k"),
        "indexer_n_heads": metadata.need("attention.indexer.head_count"),
        "indexer_head_dim": metadata.need("attention.indexer.key_length"),
        "indexer_compress_ratio": max(metadata.need("attention.compress_ratios")),
        "output_gate_type": "sigmoid",  # fixed by llama.cpp
        "ngrams": ngrams if ngrams["layers"] else None,
        "ple_layer_ids": [],
    }


def _layers_without_attention(metadata: Metadata) -> list[bool]:
    """Return which layers have no key/value heads, and leave the number of those of the others."""
    counts = metadata.need("attention.head_count_kv")
    return [not count for count in counts] if isinstance(counts, list) else [not counts] * (metadata.layer_count or 0)


def _key_value_heads(metadata: Metadata) -> int:
    counts = metadata.need("attention.head_count_kv")
    return max(counts) if isinstance(counts, list) else int(counts)


def lfm2(metadata: Metadata) -> dict[str, Any]:
    """LFM2."""
    return {
        "norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        "num_key_value_heads": _key_value_heads(metadata),
        "layer_types": ["conv" if bare else FULL for bare in _layers_without_attention(metadata)],
        "conv_L_cache": metadata.need("shortconv.l_cache"),
        "conv_bias": metadata.has("blk.0.shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def lfm2moe(metadata: Metadata) -> dict[str, Any]:
    """LFM2 with experts."""
    return lfm2(metadata) | {
        "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
        "num_dense_layers": metadata.get("leading_dense_block_count", 0),
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "use_expert_bias": True,
    }


def mamba(metadata: Metadata) -> dict[str, Any]:
    """Mamba and Falcon Mamba, whose norm before steps, keys and queries is the other norms'."""
    has_norms = metadata.get("ssm.dt_b_c_rms", False)
    fields = common(metadata, "falcon_mamba" if has_norms else "mamba")
    return fields | {
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1),  # no layer has them
        "layer_norm_epsilon": fields["rms_norm_eps"],
        "mixer_rms_eps": fields["rms_norm_eps"],
        "intermediate_size": metadata.need("ssm.inner_size"),
        "state_size": metadata.need("ssm.state_size"),
        "time_step_rank": metadata.need("ssm.time_step_rank"),
        "conv_kernel": metadata.need("ssm.conv_kernel"),
        "use_conv_bias": metadata.has("blk.0.ssm_conv1d.bias"),
        "use_bias": metadata.has("blk.0.ssm_in.bias"),
    }


def jamba(metadata: Metadata) -> dict[str, Any]:
    """Jamba."""
    bare, experts = _layers_without_attention(metadata), metadata.get("expert_count", 1)
    routed = [metadata.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in range(len(bare))]
    return common(metadata, "jamba") | {
        "num_key_value_heads": _key_value_heads(metadata),
        "layer_types": [_LINEAR if without else FULL for without in bare],
        "layers_num_experts": [experts if has_router else 1 for has_router in routed],
        "num_experts": experts,
        "num_experts_per_tok": metadata.get("expert_used_count", 1),
        "mamba_d_state": metadata.need("ssm.state_size"),
        "mamba_d_conv": metadata.need("ssm.conv_kernel"),
        "mamba_expand": metadata.need("ssm.inner_size") // metadata.need("embedding_length"),
        "mamba_dt_rank": metadata.need("ssm.time_step_rank"),
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }


def mamba2(metadata: Metadata) -> dict[str, Any]:
    """Mamba-2."""
    fields, inner = common(metadata, "mamba2"), metadata.need("ssm.inner_size")
    return fields | {
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "intermediate_size"), 1),  # no layer has them
        "layer_norm_epsilon": fields["rms_norm_eps"],
        "num_heads": metadata.need("ssm.time_step_rank"),
        "n_groups": metadata.need("ssm.group_count"),
        "state_size": metadata.need("ssm.state_size"),
        "expand": inner // metadata.need("embedding_length"),
        "conv_kernel": metadata.need("ssm.conv_kernel"),
        "use_conv_bias": metadata.has("blk.0.ssm_conv1d.bias"),
        "use_bias": metadata.has("blk.0.ssm_in.bias"),
        "time_step_limit": None,
    }


def _mamba_sizes(metadata: Metadata) -> dict[str, Any]:
    heads = metadata.need("ssm.time_step_rank")
    return {
        "mamba_n_heads": heads,
        "mamba_n_groups": metadata.need("ssm.group_count"),
        "mamba_d_state": metadata.need("ssm.state_size"),
        "mamba_d_head": metadata.need("ssm.inner_size") // heads,
        "mamba_d_conv": metadata.need("ssm.conv_kernel"),
        "time_step_limit": None,
    }


def granitehybrid(metadata: Metadata) -> dict[str, Any]:
    """Granite 4: layers with attention do not rotate."""
    bare = _layers_without_attention(metadata)
    first = bare.index(True) if True in bare else 0
    shared = metadata.tensors.get("blk.0.ffn_up_shexp.weight", metadata.tensors.get("blk.0.ffn_up.weight"))
    return (
        common(metadata, "granitemoehybrid")
        | multipliers(metadata)
        | _mamba_sizes(metadata)
        | {
            "num_key_value_heads": _key_value_heads(metadata),
            "layer_types": [_LINEAR if without else FULL for without in bare],
            "num_local_experts": metadata.get("expert_count", 0),
            "num_experts_per_tok": metadata.get("expert_used_count", 0),
            "intermediate_size": metadata.get("feed_forward_length"),
            "shared_intermediate_size": shared.shape[0] if shared else None,
            "position_embedding_type": "nope" if any(bare) else "rope",
            "mamba_conv_bias": metadata.has(f"blk.{first}.ssm_conv1d.bias"),
            "mamba_proj_bias": metadata.has(f"blk.{first}.ssm_in.bias"),
        }
    )


def falcon_h1(metadata: Metadata) -> dict[str, Any]:
    """Falcon-H1, whose factors are in the weights already."""
    biases = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
    factors = ("attention_in", "attention_out", "key", "ssm_in", "ssm_out", "lm_head", "embedding")
    return (
        common(metadata, "falcon_h1")
        | _mamba_sizes(metadata)
        | dict.fromkeys(biases, False)
        | {f"{name}_multiplier": 1.0 for name in factors}
        | {
            "ssm_multipliers": [1.0] * 5,
            "mlp_multipliers": [1.0] * 2,
            "mamba_d_ssm": metadata.need("ssm.inner_size"),
            "mamba_conv_bias": metadata.has("blk.0.ssm_conv1d.bias"),
            "mamba_rms_norm": metadata.has("blk.0.ssm_norm.weight"),
            "mamba_norm_before_gate": False,
        }
    )


def minimax_01(metadata: Metadata) -> dict[str, Any]:
    """MiniMax-Text-01 and M1: every eighth layer has attention unless the file says which do."""
    layers, period = metadata.layer_count or 0, metadata.get("full_attention_interval", 8)
    recurrent = metadata.get("attention.recurrent_layers", [bool((layer + 1) % period) for layer in range(layers)])
    fields = common(metadata, "minimax")
    halves = ("full_attn", "linear_attn", "mlp")
    return (
        fields
        | dict.fromkeys((f"{half}_alpha_factor" for half in halves), metadata.need("residual_scale"))
        | dict.fromkeys((f"{half}_beta_factor" for half in halves), 1.0)
        | {
            "layer_types": [_LINEAR if is_recurrent else FULL for is_recurrent in recurrent[:layers]],
        }
    )


def nemotron_h(metadata: Metadata) -> dict[str, Any]:
    """Nemotron-H: a layer has attention, or else an MLP, or else Mamba-2."""
    sizes, bare = metadata.need("feed_forward_length"), _layers_without_attention(metadata)
    sizes = sizes if isinstance(sizes, list) else [sizes] * len(bare)
    mlp = "moe" if metadata.get("expert_count") else "mlp"
    kinds = [(mlp if size else _LINEAR) if without else FULL for size, without in zip(sizes, bare, strict=True)]
    first = kinds.index(_LINEAR) if _LINEAR in kinds else 0
    biased = {kind: f"blk.{kinds.index(kind)}." for kind in (FULL, "mlp") if kind in kinds}
    eps = "attention.layer_norm_epsilon"  # the converter's name, also of the other kind of norm
    return common(metadata, "nemotron_h", "rms_norm_eps" if metadata.get(eps) is None else "layer_norm_epsilon") | {
        "num_key_value_heads": _key_value_heads(metadata),
        "intermediate_size": max(sizes) or 1,
        "layer_norm_epsilon": metadata.get(eps, metadata.get("attention.layer_norm_rms_epsilon")),
        "layer_types": kinds,
        "attention_bias": metadata.has(biased.get(FULL, "") + "attn_q.bias"),
        "mlp_hidden_act": "relu2",
        "mlp_bias": metadata.has(biased.get("mlp", "") + "ffn_up.bias"),
        "mamba_hidden_act": "silu",
        "mamba_num_heads": metadata.need("ssm.time_step_rank"),
        "mamba_head_dim": metadata.need("ssm.inner_size") // metadata.need("ssm.time_step_rank"),
        "n_groups": metadata.need("ssm.group_count"),
        "ssm_state_size": metadata.need("ssm.state_size"),
        "conv_kernel": metadata.need("ssm.conv_kernel"),
        "use_conv_bias": metadata.has(f"blk.{first}.ssm_conv1d.bias"),
        "use_bias": False,
        "time_step_limit": None,
    }


def nemotron_h_moe(metadata: Metadata) -> dict[str, Any]:
    """Nemotron 3: Nemotron-H with experts in place of MLPs."""
    return nemotron_h(metadata) | {
        "n_routed_experts": metadata.need("expert_count"),
        "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": metadata.need("expert_shared_feed_forward_length"),
        "moe_latent_size": metadata.get("moe_latent_size"),
        "norm_topk_prob": metadata.get("expert_weights_norm", False),
        "routed_scaling_factor": metadata.get("expert_weights_scale", 1.0),
        "n_group": metadata.get("expert_group_count", 1),
        "topk_group": metadata.get("expert_group_used_count", 1),
    }
