"""ERNIE 4.5 with experts, whose softmax scores are corrected by learned numbers for the choice alone."""

from typing import Any

from lmdeploy.turbomind.families import ernie4_5
from lmdeploy.turbomind.families.common import Checkpoint, Family, refuse_unless
from lmdeploy.turbomind.families.experts import ExpertNames, moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, reshape
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(not config.use_bias, "use_bias with experts")
    first, last, step = config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval
    moe = MoeSpec(
        num_experts=config.moe_num_experts,
        experts_per_token=config.moe_k,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=True, has_correction=True),
        layers=tuple((i + 1) % step == 0 and first <= i <= last for i in range(config.num_hidden_layers)),
        shared_intermediate_size=config.moe_num_shared_experts * config.moe_intermediate_size,
    )
    return ernie4_5.spec(config, checkpoint, moe=moe)


def experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer; the corrections are a matrix of one row."""
    count = moe_of(spec).num_experts
    correction = Load(f"{prefix}mlp.moe_statics.e_score_correction_bias", (1, count))
    return ExpertNames().tensors(spec, prefix) | {"moe.router.correction": reshape(correction, count)}


FAMILY = Family(("Ernie4_5_MoeForCausalLM",), spec, Layout(experts=experts).tensors)
