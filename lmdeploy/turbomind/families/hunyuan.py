"""Tencent: Hunyuan, HY3 and Youtu-LLM."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import qwen
from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    attention_spec,
    decoder_spec,
    head_dim_of,
    reject_unless,
)
from lmdeploy.turbomind.families.deepseek import moe_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.latent import latent_attention
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope, rope_of
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RopeSpec, RouterSpec

# Hunyuan, dense and with experts (A13B): queries and keys are normed after rotation.
EXPERTS = ExpertNames(router="mlp.gate.wg", shared="mlp.shared_mlp.{}_proj")
LAYOUT = Layout(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm", experts=EXPERTS.tensors)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="head", norms_rotated=True),
        ropes=(_rope(config),),
        moe=_moe(config) if checkpoint.architecture == "HunYuanMoEV1ForCausalLM" else None,
    )


def _rope(config: Any) -> RopeSpec:
    """Return the rotation; ``dynamic`` with an ``alpha`` does not depend on the length."""
    parameters = config.rope_parameters
    if parameters["rope_type"] != "dynamic" or not parameters.get("alpha"):
        return rope_of(config)
    dimensions = head_dim_of(config)
    growth = float(parameters["alpha"]) ** (dimensions / (dimensions - 2))
    return default_rope(float(parameters["rope_theta"]) * growth, dimensions)


def _moe(config: Any) -> MoeSpec:
    """Return the experts; some configs have their numbers for each layer, which are all the same."""
    numbers = {name: _one(name, getattr(config, name)) for name in ("num_experts", "moe_topk")}
    return MoeSpec(
        num_experts=numbers["num_experts"],
        experts_per_token=numbers["moe_topk"],
        intermediate_size=config.intermediate_size,
        router=RouterSpec(normalizes=True),
        shared_intermediate_size=config.intermediate_size,
    )


def _one(name: str, value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    reject_unless(len(set(values)) == 1, f"{name} that differs from layer to layer")
    return values[0]


FAMILY = Family(("HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM"), spec, LAYOUT.tensors)


# HY3: Qwen3's attention, experts chosen as in DeepSeek-V3 without groups.
def hy3_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    router = RouterSpec("sigmoid", normalizes=True, scale=config.router_scaling_factor, has_correction=True)
    reject_unless(not config.mlp_bias, "mlp_bias with experts")
    return qwen.qwen3_spec(config, checkpoint, moe=moe_spec(config, router))


HY3_EXPERTS = dataclasses.replace(EXPERTS, router="mlp.router.gate", correction="mlp.expert_bias")
HY3 = Family(("HYV3ForCausalLM",), hy3_spec, Layout(experts=HY3_EXPERTS.tensors).tensors)


# Youtu-LLM: DeepSeek-V3's latent attention without experts.
def youtu_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    rope = rope_of(config, is_interleaved=config.rope_interleave)
    return decoder_spec(config, checkpoint, attention=latent_attention(config), ropes=(rope,))


YOUTU = Family(("YoutuForCausalLM",), youtu_spec, Layout().tensors)
