"""DeepSeek-MoE, V2, V2.5 and V3: experts from some layer on, and one that every token goes to; latent attention."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, decoder_spec
from lmdeploy.turbomind.families.latent import latent_attention
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def moe_spec(config: Any, router: RouterSpec) -> MoeSpec:
    """Return the experts of a config with DeepSeek's names."""
    step = getattr(config, "moe_layer_freq", 1)
    first = config.first_k_dense_replace
    return MoeSpec(
        num_experts=config.n_routed_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=router,
        layers=tuple(i >= first and i % step == 0 for i in range(config.num_hidden_layers)),
        shared_intermediate_size=(config.n_shared_experts or 0) * config.moe_intermediate_size,
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
