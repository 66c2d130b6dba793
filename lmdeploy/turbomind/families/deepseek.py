"""DeepSeek-MoE, V2, V3 and V3.2, and dots.llm1, which has their experts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families import qwen
from lmdeploy.turbomind.families.common import (
    SIZES,
    Checkpoint,
    Family,
    decoder_spec,
    llama_config,
    reject_unless,
)
from lmdeploy.turbomind.families.latent import latent_attention, latent_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import IndexerSpec, ModelSpec, MoeSpec, RouterSpec


# DeepSeek-MoE, V2, V2.5 and V3: experts from some layer on, and one that every token goes to; latent attention.
def moe_spec(config: Any, router: RouterSpec) -> MoeSpec:
    """Return the experts of a config with DeepSeek's names."""
    if kinds := getattr(config, "mlp_layer_types", None):
        layers = tuple(kind == "sparse" for kind in kinds)
    else:
        step, first = getattr(config, "moe_layer_freq", 1), getattr(config, "first_k_dense_replace", 0)
        layers = tuple(i >= first and i % step == 0 for i in range(config.num_hidden_layers))
    routed = getattr(config, "n_routed_experts", None) or config.num_experts
    shared = getattr(config, "n_shared_experts", None) or getattr(config, "num_shared_experts", None) or 0
    return MoeSpec(
        num_experts=routed,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=router,
        layers=layers,
        shared_intermediate_size=shared * config.moe_intermediate_size,
    )


def corrected_router(config: Any) -> RouterSpec:
    """Return the router of DeepSeek-V3: sigmoid scores, and a learned correction of them for the choice alone."""
    return RouterSpec(
        score="sigmoid",
        normalizes=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        groups=config.n_group,
        top_groups=config.topk_group,
        group_score="top2",
        has_correction=True,
    )


def latent_spec(config: Any, checkpoint: Checkpoint, router: RouterSpec, *, is_interleaved: bool) -> ModelSpec:
    """Return the spec of a model with latent attention and experts."""
    return decoder_spec(
        config,
        checkpoint,
        attention=latent_attention(config),
        ropes=(rope_of(config, is_interleaved=is_interleaved),),
        moe=moe_spec(config, router),
    )


# DeepSeek-V2, V2-Lite, V2.5: latent attention, and experts chosen from the best groups of them.
_METHODS = ("greedy", "group_limited_greedy")


def deepseek_v2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    method = config.topk_method
    reject_unless(method in _METHODS, f"topk_method {method!r}")
    # The published code scales either the normalised or the plain weights; every published checkpoint has the latter.
    reject_unless(not config.norm_topk_prob, "norm_topk_prob")
    is_grouped = method == "group_limited_greedy"
    router = RouterSpec(
        scale=config.routed_scaling_factor,
        groups=config.n_group if is_grouped else 1,
        top_groups=config.topk_group if is_grouped else 1,
    )
    return latent_spec(config, checkpoint, router, is_interleaved=True)


DEEPSEEK_V2 = Family(("DeepseekV2ForCausalLM",), deepseek_v2_spec, Layout().tensors)


# DeepSeek-V3, R1, Kimi K2 and GLM-4.7-Flash: V2 with sigmoid scores, corrected for the choice alone.
def deepseek_v3_read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config; that of Kimi K2 has another name for the same fields."""
    from transformers import CONFIG_MAPPING

    kind = "deepseek_v3" if raw["model_type"] == "kimi_k2" else raw["model_type"]
    return CONFIG_MAPPING[kind].from_dict({**raw, "model_type": kind})


DEEPSEEK_V3 = Family(
    ("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
    lambda config, checkpoint: latent_spec(
        config, checkpoint, corrected_router(config), is_interleaved=config.rope_interleave
    ),
    Layout().tensors,
    config=deepseek_v3_read_config,
)


# DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with sparse attention.
#
# Each token attends to the ``index_topk`` earlier ones that a small scorer, the indexer, chooses. In GLM-5 some layers
# take the choice of the one before.
_NORM_EPS = 1e-6  # of the indexer's keys, whatever the config says of other norms


def indexer_of(config: Any, *, is_interleaved: bool = False) -> IndexerSpec:
    """Return the indexer of a config."""
    return IndexerSpec(
        top_k=config.index_topk,
        num_heads=config.index_n_heads,
        head_dim=config.index_head_dim,
        is_interleaved=is_interleaved,
        norm_eps=_NORM_EPS,
        layers=tuple(kind == "full" for kind in getattr(config, "indexer_types", None) or ()),
    )


def deepseek_v32_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    whole = latent_spec(config, checkpoint, corrected_router(config), is_interleaved=True)
    assert whole.attention.mla is not None
    indexer = indexer_of(config, is_interleaved=whole.architecture == "GlmMoeDsaForCausalLM")
    mla = dataclasses.replace(whole.attention.mla, indexer=indexer)
    return dataclasses.replace(whole, attention=dataclasses.replace(whole.attention, mla=mla))


def indexer_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the indexer tensors of a layer whose tensors begin with ``prefix``; none where there is no indexer."""
    mla = spec.attention.mla
    assert mla is not None
    indexer = mla.indexer
    assert indexer is not None
    layer = int(prefix.rstrip(".").rsplit(".", 1)[1])
    if indexer.layers and not indexer.layers[layer]:
        return {}
    shapes = {
        "queries.weight": ("wq_b.weight", (indexer.num_heads * indexer.head_dim, mla.q_rank)),
        "keys.weight": ("wk.weight", (indexer.head_dim, spec.hidden_size)),
        "key_norm.weight": ("k_norm.weight", (indexer.head_dim,)),
        "key_norm.bias": ("k_norm.bias", (indexer.head_dim,)),
        "heads.weight": ("weights_proj.weight", (indexer.num_heads, spec.hidden_size)),
    }
    stored = f"{prefix}self_attn.indexer."
    return {f"attention.indexer.{name}": Load(stored + source, shape) for name, (source, shape) in shapes.items()}


def _tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    return latent_tensors(spec, prefix) | indexer_tensors(spec, prefix)


DEEPSEEK_V32 = Family(
    ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), deepseek_v32_spec, Layout(latent=_tensors).tensors
)


# DeepSeek-MoE 16B, published with its own code: Llama's attention, many small experts and some for every token.
_DEFAULTS = {"moe_layer_freq": 1, "first_k_dense_replace": 0, "n_shared_experts": None, "norm_topk_prob": False}


def deepseek_v1_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    scoring = getattr(config, "scoring_func", "softmax")
    reject_unless(scoring == "softmax", f"scoring_func {scoring!r}")
    reject_unless(not config.attention_bias, "attention_bias")
    method = getattr(config, "topk_method", "greedy")
    reject_unless(method == "greedy", f"topk_method {method!r}")
    # The text part of DeepSeek-OCR 2 has a scale, and no choice of the other.
    router = RouterSpec(
        normalizes=getattr(config, "norm_topk_prob", False), scale=getattr(config, "routed_scaling_factor", 1.0)
    )
    return decoder_spec(config, checkpoint, moe=moe_spec(config, router))


DEEPSEEK_MOE = Family(
    ("DeepseekForCausalLM",),
    deepseek_v1_spec,
    Layout().tensors,
    config=lambda raw: llama_config(_DEFAULTS | dict(raw)),
    sizes=(*SIZES, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
)


# dots.llm1: Qwen3's attention, experts as in DeepSeek-V3.
DOTS1 = Family(
    ("Dots1ForCausalLM",),
    lambda config, checkpoint: qwen.qwen3_spec(config, checkpoint, moe=moe_spec(config, corrected_router(config))),
    Layout().tensors,
)
