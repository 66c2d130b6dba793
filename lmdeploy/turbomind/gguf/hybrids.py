"""config.json from the metadata of GGUF files of recurrent and hybrid models."""

from collections.abc import Callable
from typing import Any

from lmdeploy.turbomind.gguf.configs import (
    FULL,
    common,
    expert_size,
    get,
    has,
    joined,
    multipliers,
    need,
    plain,
    qwen_experts,
    shared_size,
)
from lmdeploy.turbomind.gguf.metadata import Metadata

_LINEAR = "linear_attention"


def _recurrences(period: int) -> Callable[[Metadata], list[str]]:
    """Return the reader of the kind of each layer: as the file says, or the last of ``period`` has attention."""

    def kinds(metadata: Metadata) -> list[str]:
        layers, every = metadata.layer_count or 0, metadata.get("full_attention_interval", period)
        recurrent = metadata.get("attention.recurrent_layers", [bool((layer + 1) % every) for layer in range(layers)])
        return [_LINEAR if is_recurrent else FULL for is_recurrent in recurrent[:layers]]

    return kinds


def _layers_without_attention(metadata: Metadata) -> list[bool]:
    """Return which layers have no key/value heads, and leave the number of those of the others."""
    counts = metadata.need("attention.head_count_kv")
    return [not count for count in counts] if isinstance(counts, list) else [not counts] * (metadata.layer_count or 0)


def _mixers(metadata: Metadata) -> list[str]:
    """Return the kind of each layer, by its key/value heads."""
    return [_LINEAR if bare else FULL for bare in _layers_without_attention(metadata)]


def _key_value_heads(metadata: Metadata) -> int:
    counts = metadata.need("attention.head_count_kv")
    return max(counts) if isinstance(counts, list) else int(counts)


def _value_size(metadata: Metadata) -> int:
    """Return the size of a value head of a recurrence."""
    return int(metadata.need("ssm.inner_size") // metadata.need("ssm.time_step_rank"))


# Qwen3-Next and Qwen3.5.
gated_delta = joined(
    layer_types=_recurrences(4),
    linear_num_value_heads=need("ssm.time_step_rank"),
    linear_num_key_heads=need("ssm.group_count"),
    linear_key_head_dim=need("ssm.state_size"),
    linear_value_head_dim=_value_size,
    linear_conv_kernel_dim=need("ssm.conv_kernel"),
)
# The same with experts.
gated_delta_experts = joined(
    gated_delta,
    qwen_experts,
    intermediate_size=lambda metadata: metadata.get("feed_forward_length") or expert_size(metadata),
    shared_expert_intermediate_size=shared_size,
)


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


lfm2 = plain(
    "lfm2",
    norm_eps=need("attention.layer_norm_rms_epsilon"),
    num_key_value_heads=_key_value_heads,
    layer_types=lambda metadata: ["conv" if bare else FULL for bare in _layers_without_attention(metadata)],
    conv_L_cache=need("shortconv.l_cache"),
    conv_bias=has("blk.0.shortconv.conv.bias"),
    block_auto_adjust_ff_dim=False,
)
lfm2moe = joined(
    lfm2,
    model_type="lfm2_moe",
    moe_intermediate_size=need("expert_feed_forward_length"),
    num_dense_layers=get("leading_dense_block_count", 0),
    norm_topk_prob=True,
    routed_scaling_factor=1.0,
    use_expert_bias=True,
)
mamba = plain(
    "mamba",
    joined(num_attention_heads=1, num_key_value_heads=1),  # no layer has them
    layer_norm_epsilon=need("attention.layer_norm_rms_epsilon"),
    intermediate_size=need("ssm.inner_size"),
    state_size=need("ssm.state_size"),
    time_step_rank=need("ssm.time_step_rank"),
    conv_kernel=need("ssm.conv_kernel"),
    use_conv_bias=has("blk.0.ssm_conv1d.bias"),
    use_bias=has("blk.0.ssm_in.bias"),
)
# Its norm before steps, keys and queries is the other norms'.
falcon_mamba = joined(mamba, model_type="falcon_mamba", mixer_rms_eps=need("attention.layer_norm_rms_epsilon"))


def jamba(metadata: Metadata) -> dict[str, Any]:
    """Jamba."""
    experts, layers = metadata.get("expert_count", 1), range(metadata.layer_count or 0)
    routed = [metadata.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in layers]
    return common(metadata, "jamba") | {
        "num_key_value_heads": _key_value_heads(metadata),
        "layer_types": _mixers(metadata),
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


mamba2 = plain(
    "mamba2",
    joined(num_attention_heads=1, num_key_value_heads=1, intermediate_size=1),  # no layer has them
    layer_norm_epsilon=need("attention.layer_norm_rms_epsilon"),
    num_heads=need("ssm.time_step_rank"),
    n_groups=need("ssm.group_count"),
    state_size=need("ssm.state_size"),
    expand=lambda metadata: metadata.need("ssm.inner_size") // metadata.need("embedding_length"),
    conv_kernel=need("ssm.conv_kernel"),
    use_conv_bias=has("blk.0.ssm_conv1d.bias"),
    use_bias=has("blk.0.ssm_in.bias"),
    time_step_limit=None,
)
_mamba_sizes = joined(
    mamba_n_heads=need("ssm.time_step_rank"),
    mamba_n_groups=need("ssm.group_count"),
    mamba_d_state=need("ssm.state_size"),
    mamba_d_head=_value_size,
    mamba_d_conv=need("ssm.conv_kernel"),
    time_step_limit=None,
)


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
            "layer_types": _mixers(metadata),
            "num_local_experts": metadata.get("expert_count", 0),
            "num_experts_per_tok": metadata.get("expert_used_count", 0),
            "intermediate_size": metadata.get("feed_forward_length"),
            "shared_intermediate_size": shared.shape[0] if shared else None,
            "position_embedding_type": "nope" if any(bare) else "rope",
            "mamba_conv_bias": metadata.has(f"blk.{first}.ssm_conv1d.bias"),
            "mamba_proj_bias": metadata.has(f"blk.{first}.ssm_in.bias"),
        }
    )


# Falcon-H1, whose factors are in the weights already.
_BIASES = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
_FACTORS = ("attention_in", "attention_out", "key", "ssm_in", "ssm_out", "lm_head", "embedding")
falcon_h1 = plain(
    "falcon_h1",
    _mamba_sizes,
    joined(**dict.fromkeys(_BIASES, False), **{f"{name}_multiplier": 1.0 for name in _FACTORS}),
    ssm_multipliers=(1.0,) * 5,
    mlp_multipliers=(1.0,) * 2,
    mamba_d_ssm=need("ssm.inner_size"),
    mamba_conv_bias=has("blk.0.ssm_conv1d.bias"),
    mamba_rms_norm=has("blk.0.ssm_norm.weight"),
    mamba_norm_before_gate=False,
)
# MiniMax-Text-01 and M1.
_HALVES = ("full_attn", "linear_attn", "mlp")
minimax_01 = plain(
    "minimax",
    joined(**{f"{half}_alpha_factor": need("residual_scale") for half in _HALVES}),
    joined(**{f"{half}_beta_factor": 1.0 for half in _HALVES}),
    layer_types=_recurrences(8),
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


# Nemotron 3: Nemotron-H with experts in place of MLPs.
nemotron_h_moe = joined(
    nemotron_h,
    n_routed_experts=need("expert_count"),
    moe_intermediate_size=need("expert_feed_forward_length"),
    moe_shared_expert_intermediate_size=need("expert_shared_feed_forward_length"),
    moe_latent_size=get("moe_latent_size"),
    norm_topk_prob=get("expert_weights_norm", False),
    routed_scaling_factor=get("expert_weights_scale", 1.0),
    n_group=get("expert_group_count", 1),
    topk_group=get("expert_group_used_count", 1),
)
