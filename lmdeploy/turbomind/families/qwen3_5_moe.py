"""Qwen3.5 with experts in every layer, and a gated one that every token goes to."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.gated_delta import divided_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.qwen3_next import dense_spec
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    moe = MoeSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=True),
        shared_intermediate_size=config.shared_expert_intermediate_size,
        has_shared_gate=True,
    )
    # No layer has the dense MLP that this would be the size of.
    return dense_spec(config, checkpoint, moe=moe, intermediate_size=config.moe_intermediate_size)


LAYOUT = Layout(experts=ExpertNames(shared="mlp.shared_expert.{}_proj").tensors, recurrence=divided_tensors)
FAMILY = Family(
    ("Qwen3_5MoeForCausalLM",),
    spec,
    LAYOUT.tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "moe_intermediate_size"),
)
