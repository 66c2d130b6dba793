"""Mixtral: Llama's attention, and in each layer experts, whose chosen weights sum to one."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec

EXPERTS = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
)


def moe_spec(config: Any, router: RouterSpec) -> MoeSpec:
    """Return the experts of a config with Mixtral's names."""
    return MoeSpec(config.num_local_experts, config.num_experts_per_tok, config.intermediate_size, router)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(config, checkpoint, moe=moe_spec(config, RouterSpec(normalizes=True)))


FAMILY = Family(("MixtralForCausalLM",), spec, Layout(experts=EXPERTS.tensors).tensors)
