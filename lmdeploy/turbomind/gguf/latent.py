"""Latent attention in GGUF files: configs, and tensors, where the up-projections of the latent are mostly separate.

That of keys is then transposed.
"""

from functools import partial
from typing import Any

from lmdeploy.turbomind.families import hunyuan_v4, latent
from lmdeploy.turbomind.families.deepseek import indexer_tensors
from lmdeploy.turbomind.gguf.configs import common, get, joined, need
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.gguf.mixtures import deepseek_experts
from lmdeploy.turbomind.manifest import Expression, Load, concat, permute, renamed, reshape
from lmdeploy.turbomind.spec import ModelSpec

# Published names, and GGUF's.
_JOINED = {
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    "kv_b_proj": "attn_kv_b",
    "q_a_proj": "attn_q_a",
    "q_a_layernorm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "q_proj": "attn_q",
    "o_proj": "attn_output",
    "gate": "attn_gate",
}
_INDEXER = {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}


def latent_tensors(spec: ModelSpec, prefix: str, gate: str = "", *, by_head: bool = False) -> dict[str, Expression]:
    """Return the engine tensors of the latent attention of a layer; ``gate`` as the families' function has it."""
    mla, heads = spec.attention.mla, spec.num_heads
    assert mla is not None
    keys = permute(Load(f"{prefix}attn_k_b.weight", (heads, mla.kv_rank, mla.nope_dim)), 2, 0, 1)
    values = permute(Load(f"{prefix}attn_v_b.weight", (heads, mla.value_dim, mla.kv_rank)), 1, 0, 2)
    both = permute(concat(keys, values), 1, 0, 2)
    up = reshape(both, heads * (mla.nope_dim + mla.value_dim), mla.kv_rank)
    return joined_tensors(spec, prefix, gate, by_head=by_head) | {"attention.kv_up.weight": up}


def joined_tensors(spec: ModelSpec, prefix: str, gate: str = "", *, by_head: bool = False) -> dict[str, Expression]:
    """Return the engine tensors of a layer whose projection out of the latent is one matrix.

    That is so in MiniCPM3's files, and in DeepSeek's of before April 2025.
    """

    def stored(name: str) -> str:
        published, suffix = name.removeprefix(f"{prefix}self_attn.").rsplit(".", 1)
        return f"{prefix}{_JOINED[published]}.{suffix}"

    tensors = latent.latent_tensors(spec, prefix, gate=gate, by_head=by_head)
    return {name: renamed(whole, stored) for name, whole in tensors.items()}


def indexed_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer with sparse attention, with those of its indexer where it has one."""
    return latent_tensors(spec, prefix) | _indexer(indexer_tensors(spec, prefix), prefix)


def hy4_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the same of HY4, with a gate and sinks."""
    sinks = {"attention.sinks": Load(f"{prefix}attn_sinks.weight", (spec.num_heads,))}
    indexer = _indexer(hunyuan_v4.rotated_indexer(spec, prefix), prefix)
    return latent_tensors(spec, prefix, "gate") | indexer | sinks


def _indexer(tensors: dict[str, Expression], prefix: str) -> dict[str, Expression]:
    def stored(name: str) -> str:
        published, suffix = name.removeprefix(f"{prefix}self_attn.indexer.").rsplit(".", 1)
        return f"{prefix}indexer.{_INDEXER[published]}.{suffix}"

    return {name: renamed(whole, stored) for name, whole in tensors.items()}


def _latent(metadata: Metadata, model_type: str) -> dict[str, Any]:
    """Return the config of a model with latent attention.

    GGUF counts one key/value head, of the latent's size, with the sizes of heads apart (``_mla``); older files have as
    many as there are queries' heads, of their sizes.
    """
    fields = _whole_rotation(common(metadata, model_type)) | deepseek_experts(metadata)
    rope = metadata.need("rope.dimension_count")
    suffix = "_mla" if metadata.get("attention.key_length_mla") else ""
    if factor := metadata.get("rope.scaling.yarn_log_multiplier"):
        fields["rope_parameters"] |= dict.fromkeys(("mscale", "mscale_all_dim"), 10 * factor)
    return fields | {
        "num_key_value_heads": fields["num_attention_heads"],
        "head_dim": rope,
        "q_lora_rank": metadata.get("attention.q_lora_rank"),
        "kv_lora_rank": metadata.need("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": metadata.need(f"attention.key_length{suffix}") - rope,
        "v_head_dim": metadata.need(f"attention.value_length{suffix}"),
    }


def _whole_rotation(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the part of a head that turns, which is a head of its own."""
    fields["rope_parameters"].pop("partial_rotary_factor", None)
    return fields


def deepseek_v2(metadata: Metadata) -> dict[str, Any]:
    """DeepSeek-V2."""
    fields = _latent(metadata, "deepseek_v2")
    return fields | {"topk_method": "group_limited_greedy" if fields["n_group"] > 1 else "greedy"}


# DeepSeek-V3, Kimi K2 and GLM-4.7-Flash.
deepseek_v3 = joined(partial(_latent, model_type="deepseek_v3"), rope_interleave=True)
deepseek_v32 = joined(
    partial(_latent, model_type="deepseek_v32"),
    index_topk=need("attention.indexer.top_k"),
    index_n_heads=need("attention.indexer.head_count"),
    index_head_dim=need("attention.indexer.key_length"),
)


def _indexers(metadata: Metadata) -> list[str]:
    chooses = metadata.get("attention.indexer.types", [True] * (metadata.layer_count or 0))
    return ["full" if choosing else "shared" for choosing in chooses[: metadata.layer_count]]


# GLM-5, in which some layers choose as the one before.
glm_dsa = joined(deepseek_v32, model_type="glm_moe_dsa", indexer_types=_indexers)
# HY4; only routed experts have limits, all the same.
hy_v4 = joined(
    glm_dsa,
    model_type="hy_v4",
    hc_mult=need("hyper_connection.count"),
    hc_eps=need("hyper_connection.epsilon"),
    hc_magnitude=need("hyper_connection.magnitude"),
    swiglu_limit=lambda metadata: max(metadata.get("swiglu_clamp_exp", [0.0])),
)
# Mistral Small 4; how queries grow with their position is not in the file, and llama.cpp leaves it out.
mistral4 = joined(partial(_latent, model_type="mistral4"), rope_interleave=True)


def minicpm3(metadata: Metadata) -> dict[str, Any]:
    """MiniCPM3, whose factors are not in the file: those of the 4B, the only model."""
    fields = _whole_rotation(common(metadata, "minicpm3"))
    heads, rope = metadata.need("attention.head_count"), metadata.need("rope.dimension_count")
    joined = metadata.tensors.get("blk.0.attn_kv_b.weight")
    nope = metadata.need("attention.key_length") - rope
    return fields | {
        "head_dim": rope,
        "q_lora_rank": metadata.need("attention.q_lora_rank"),
        "kv_lora_rank": metadata.need("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": joined.shape[0] // heads - nope if joined else None,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }


def kimi_linear(metadata: Metadata) -> dict[str, Any]:
    """Kimi Linear: a layer without key/value heads has Kimi delta attention."""
    fields = _latent(metadata, "kimi_linear")
    layers, dense = range(metadata.layer_count or 0), fields["first_k_dense_replace"]
    return fields | {
        "num_local_experts": fields["n_routed_experts"],
        "norm_topk_prob": True,
        "layer_types": ["full_attention" if heads else "linear_attention" for heads in _key_value_heads(metadata)],
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in layers],
        "linear_num_heads": fields["num_attention_heads"],
        "linear_head_dim": metadata.need("kda.head_dim"),
        "linear_conv_kernel_dim": metadata.need("ssm.conv_kernel"),
    }


# Ling 3.0.
bailingmoe3 = joined(
    kimi_linear,
    model_type="bailing_hybrid",
    kda_safe_gate=get("kda.safe_gate", True),
    kda_lower_bound=need("kda.gate_lower_bound"),
)


def _key_value_heads(metadata: Metadata) -> list[int]:
    counts = metadata.need("attention.head_count_kv")
    return counts[: metadata.layer_count] if isinstance(counts, list) else [counts] * (metadata.layer_count or 0)
