"""DeepSeek-MoE, V2, V2.5 and V3: experts from some layer on, and one that every token goes to; latent attention."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, decoder_spec
from lmdeploy.turbomind.families.latent import latent_attention
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def moe_spec(config: Any, router: RouterSpec) -> MoeSpec:
    """Return the experts of a config with DeepSeek's names."""
    if kinds := getattr(config, "mlp_layer_types", None):
        layers = tuple(kind == "sparse" for kind in kinds)
    else:
        step, first = getattr(config, "moe_layer_freq", 1), config.first_k_dense_replace
        layers = tuple(i >= first and i % step == 0 for i in range(config.num_hidden_layers))
    return MoeSpec(
        num_experts=config.n_routed_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=router,
        layers=layers,
        shared_intermediate_size=(config.n_shared_experts or 0) * config.moe_intermediate_size,
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
