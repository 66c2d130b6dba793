"""Qwen2-MoE and Qwen3-MoE: some layers have experts, Qwen2's also one that every token goes to."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import qwen2
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.experts import ExpertNames, with_experts
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec

NAMES = ExpertNames(shared="mlp.shared_expert")


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of a ``Qwen2MoeForCausalLM``."""
    moe = dataclasses.replace(
        _moe(config), shared_intermediate_size=config.shared_expert_intermediate_size, has_shared_gate=True
    )
    return dataclasses.replace(qwen2.spec(config, checkpoint), moe=moe)


def _moe(config: Any) -> MoeSpec:
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    return MoeSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=config.norm_topk_prob),
        layers=tuple(i not in dense and (i + 1) % step == 0 for i in range(config.num_hidden_layers)),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    return with_experts(Layout().tensors(spec), spec, "model.layers.{}.", NAMES)


FAMILY = Family(("Qwen2MoeForCausalLM",), spec, tensors)
