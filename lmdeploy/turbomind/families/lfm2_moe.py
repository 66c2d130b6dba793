"""LFM2 with experts in all but the first layers."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.lfm2 import LAYOUT, SIZES, lfm2_spec
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    router = RouterSpec(
        score="sigmoid",
        normalizes=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        has_correction=config.use_expert_bias,
    )
    layers = tuple(layer >= config.num_dense_layers for layer in range(config.num_hidden_layers))
    moe = MoeSpec(config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size, router, layers)
    return lfm2_spec(config, checkpoint, moe=moe)


FAMILY = Family(
    ("Lfm2MoeForCausalLM",), spec, LAYOUT.tensors, sizes=(*SIZES, "intermediate_size", "moe_intermediate_size")
)
