"""Mixtral: Llama's attention, and in each layer experts of which every token goes to two."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec
from lmdeploy.turbomind.families.experts import ExpertNames, with_experts
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec

NAMES = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of a ``MixtralForCausalLM``."""
    moe = MoeSpec(
        num_experts=config.num_local_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.intermediate_size,
        router=RouterSpec(normalizes=True),
    )
    return decoder_spec(config, checkpoint, moe=moe)


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    return with_experts(Layout().tensors(spec), spec, "model.layers.{}.", NAMES)


FAMILY = Family(("MixtralForCausalLM",), spec, tensors)
