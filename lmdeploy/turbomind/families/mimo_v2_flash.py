"""MiMo-V2-Flash: layers with a window have twice as many key/value heads and sinks; value heads have their own size."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.deepseek import corrected_router, moe_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import ModelSpec

KINDS = ("full_attention", "sliding_attention")


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    kinds = tuple(KINDS.index(kind) for kind in config.layer_types)
    full = attention_spec(
        config,
        qkv_bias=config.attention_bias,
        value_dim=config.v_head_dim,
        value_scale=1.0 if config.attention_value_scale is None else config.attention_value_scale,
    )
    config.n_shared_experts = 0
    return decoder_spec(
        config,
        checkpoint,
        attention=full,
        attentions=(dataclasses.replace(full, num_kv_heads=2 * config.num_key_value_heads, has_sinks=True),),
        layer_attentions=kinds,
        ropes=tuple(rope_of(config, kind) for kind in KINDS),
        layer_ropes=kinds,
        moe=moe_spec(config, corrected_router(config)),
    )


FAMILY = Family(("MiMoV2FlashForCausalLM",), spec, Layout(sinks="self_attn.attention_sink_bias").tensors)
