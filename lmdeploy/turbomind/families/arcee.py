"""Arcee: AFM, and Trinity (AFMoE)."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.deepseek import moe_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.llama import llama_spec
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec, RouterSpec


# Arcee (AFM): Llama with a plain MLP of squared ReLU.
def arcee_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    base = llama_spec(config, checkpoint)
    return dataclasses.replace(base, mlp=dataclasses.replace(base.mlp, is_gated=False))


ARCEE = Family(("ArceeForCausalLM",), arcee_spec, Layout().tensors)


# Trinity: gated attention, which rotates in layers with a window alone, norms around both halves, experts.
def afmoe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    config.first_k_dense_replace = config.num_dense_layers
    reject_unless(not config.attention_bias, "attention_bias with gated attention")
    return decoder_spec(
        config,
        checkpoint,
        block=BlockSpec(has_output_norms=True),
        attention=attention_spec(config, qk_norm="head", has_output_gate=True),
        layer_ropes=tuple(0 if kind == "sliding_attention" else -1 for kind in config.layer_types),
        moe=moe_spec(config, RouterSpec("sigmoid", normalizes=True, scale=config.route_scale, has_correction=True)),
        embedding_scale=config.hidden_size**0.5 if config.mup_enabled else 1.0,
    )


AFMOE_LAYOUT = Layout(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_mlp_layernorm",
    mlp_output_norm="post_mlp_layernorm",
    output_gate="self_attn.gate_proj",
    experts=ExpertNames(router="mlp.router.gate", correction="mlp.expert_bias").tensors,
)
AFMOE = Family(("AfmoeForCausalLM",), afmoe_spec, AFMOE_LAYOUT.tensors)
