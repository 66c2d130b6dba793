"""Qwen1.5-MoE and Qwen2-MoE: some layers have experts, and a gated one that every token goes to."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def moe_spec(config: Any, *, normalizes: bool | None = None) -> MoeSpec:
    """Return the experts of a config with Qwen's names, without a shared one.

    ``normalizes`` stands in for ``norm_topk_prob``, where configs have none.
    """
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    return MoeSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=config.norm_topk_prob if normalizes is None else normalizes),
        layers=tuple(i not in dense and (i + 1) % step == 0 for i in range(config.num_hidden_layers)),
    )


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    moe = dataclasses.replace(
        moe_spec(config), shared_intermediate_size=config.shared_expert_intermediate_size, has_shared_gate=True
    )
    return decoder_spec(config, checkpoint, attention=attention_spec(config, qkv_bias=config.qkv_bias), moe=moe)


LAYOUT = Layout(experts=ExpertNames(shared="mlp.shared_expert.{}_proj").tensors)
FAMILY = Family(("Qwen2MoeForCausalLM",), spec, LAYOUT.tensors)
