"""Mistral, Ministral 3, Mistral 4 and Mixtral."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.deepseek import latent_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec

# Mistral: Llama's tensors, and in its first versions a sliding window in every layer.
MISTRAL = Family(("MistralForCausalLM", "MinistralForCausalLM"), decoder_spec, Layout().tensors)


# Ministral 3: Mistral whose queries grow with their position, beyond the length before YaRN.
def temperature(config: Any) -> dict[str, Any]:
    """Return the fields of attention that say how queries grow."""
    parameters = config.rope_parameters
    scale = parameters.get("llama_4_scaling_beta")
    if not scale:
        return {}
    length = int(parameters["original_max_position_embeddings"])
    return {"temperature_scale": float(scale), "temperature_length": length}


MINISTRAL3 = Family(
    ("Ministral3ForCausalLM",),
    lambda config, checkpoint: decoder_spec(
        config, checkpoint, attention=attention_spec(config, **temperature(config))
    ),
    Layout().tensors,
)


# Mixtral: Llama's attention, and in each layer experts, whose chosen weights sum to one.
MIXTRAL_EXPERTS = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
)


def moe_spec(config: Any, router: RouterSpec) -> MoeSpec:
    """Return the experts of a config with Mixtral's names."""
    return MoeSpec(config.num_local_experts, config.num_experts_per_tok, config.intermediate_size, router)


MIXTRAL = Family(
    ("MixtralForCausalLM",),
    lambda config, checkpoint: decoder_spec(config, checkpoint, moe=moe_spec(config, RouterSpec(normalizes=True))),
    Layout(experts=MIXTRAL_EXPERTS.tensors).tensors,
)


# Mistral Small 4: latent attention whose queries grow with their position, and experts in one tensor a layer.
def mistral4_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    router = RouterSpec(
        normalizes=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        groups=config.n_group,
        top_groups=config.topk_group,
        group_score="top2",
    )
    base = latent_spec(config, checkpoint, router, is_interleaved=config.rope_interleave)
    return dataclasses.replace(base, attention=dataclasses.replace(base.attention, **temperature(config)))


MISTRAL4 = Family(("Mistral4ForCausalLM",), mistral4_spec, Layout().tensors)
