"""Phi-1 to Phi-4 and Phi-3.5-MoE."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    reject_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mistral import MIXTRAL_EXPERTS, moe_spec
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec, RopeSpec, RouterSpec


# Phi-1, Phi-1.5 and Phi-2: parallel halves that share a LayerNorm, a plain MLP, biases everywhere.
def phi_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    reject_unless(not config.qk_layernorm, "qk_layernorm, with biases,")
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.layer_norm_eps, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        block=BlockSpec(is_parallel=True, shares_norm=True),
        attention=attention_spec(config, qkv_bias=True, o_bias=True),
        output=OutputSpec(bias=True),
    )


PHI_LAYOUT = Layout(final_norm="model.final_layernorm", o="self_attn.dense", up="mlp.fc1", down="mlp.fc2")
PHI = Family(("PhiForCausalLM",), phi_spec, PHI_LAYOUT.tensors)


# Phi-3, Phi-3.5, Phi-4: one matrix for q, k, v and one for gate and up; longrope; a sliding window in some.
PHI3_LAYOUT = Layout(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")


def phi3_config(raw: Mapping[str, Any]) -> Any:
    """Return the ``Phi3Config``; its first files call longrope by another name."""
    from transformers import Phi3Config

    fields = dict(raw) | {"model_type": "phi3"}
    scaling = raw.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("type") == "su":
        fields["rope_scaling"] = {**scaling, "type": "longrope"}
    return Phi3Config.from_dict(fields)


PHI3 = Family(("Phi3ForCausalLM",), decoder_spec, PHI3_LAYOUT.tensors, config=phi3_config)


# Phi-3.5-MoE: LayerNorm, biases, and experts chosen by SparseMixer.
def phimoe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    reject_unless(config.num_experts_per_tok == 2, f"SparseMixer of {config.num_experts_per_tok} experts")
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.rms_norm_eps, kind="layer", bias=True),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
        ropes=(_rope(config),),
        moe=moe_spec(config, RouterSpec("sparsemixer", jitter=config.router_jitter_noise)),
        output=OutputSpec(bias=config.lm_head_bias),
    )


def _rope(config: Any) -> RopeSpec:
    """Return longrope with its factor of cos and sin as the config names it, or plain rotation."""
    parameters = config.rope_parameters
    if parameters["rope_type"] == "default":
        return rope_of(config)
    short, long = parameters["short_mscale"], parameters["long_mscale"]
    reject_unless(short == long, f"short_mscale {short} unlike long_mscale {long}")
    return dataclasses.replace(rope_of(config), attention_scaling=float(short))


PHIMOE = Family(
    ("PhimoeForCausalLM", "PhiMoEForCausalLM"),  # the second as it is published
    phimoe_spec,
    Layout(experts=MIXTRAL_EXPERTS.tensors).tensors,
)
