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
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec, RopeSpec, RouterSpec


# Phi-1, Phi-1.5 and Phi-2: parallel halves that share a LayerNorm, a plain MLP, biases everywhere.
def phi_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
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


# The first releases of Phi-1.5 and Phi-2, with their own code, which is never run: embeddings and head are layers, too.
_THETA = 10000.0


def mixformer_config(raw: Mapping[str, Any]) -> Any:
    """Return the ``PhiConfig``."""
    from transformers import PhiConfig

    heads, hidden = raw["n_head"], raw["n_embd"]
    turning = raw["rotary_dim"] / (hidden // heads)
    return PhiConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=hidden,
        intermediate_size=raw.get("n_inner") or 4 * hidden,
        num_hidden_layers=raw["n_layer"],
        num_attention_heads=heads,
        num_key_value_heads=raw.get("n_head_kv") or heads,
        hidden_act=raw["activation_function"],
        max_position_embeddings=raw["n_positions"],
        layer_norm_eps=raw["layer_norm_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": _THETA, "partial_rotary_factor": turning},
    )


def mixformer_tensors(spec: ModelSpec) -> dict[str, Expression]:
    last = f"layers.{spec.num_layers + 1}."
    return Layout(
        embedding="layers.0.wte",
        final_norm=last + "ln",
        lm_head=last + "linear",
        layer="layers.{}.",
        number=lambda layer: layer + 1,
        attention_norm="ln",
        qkv="mixer.Wqkv",
        o="mixer.out_proj",
        up="mlp.fc1",
        down="mlp.fc2",
    ).tensors(spec)


MIXFORMER_SIZES = ("vocab_size", "n_embd", "n_layer", "n_head", "rotary_dim", "n_positions")
MIXFORMER = Family(
    ("MixFormerSequentialForCausalLM",), phi_spec, mixformer_tensors, config=mixformer_config, sizes=MIXFORMER_SIZES
)


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
# Of Phi-4-multimodal the texts: low-rank matrices are added in prompts with images or speech alone.
PHI4_LAYOUT = Layout(
    qkv="self_attn.qkv_proj.base_layer",
    o="self_attn.o_proj.base_layer",
    gate_up="mlp.gate_up_proj.base_layer",
    down="mlp.down_proj.base_layer",
)
PHI4_MULTIMODAL = Family(("Phi4MMForCausalLM",), decoder_spec, PHI4_LAYOUT.tensors, config=phi3_config)


# Phi-3.5-MoE: LayerNorm, biases, and experts chosen by SparseMixer.
def phimoe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
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
