"""MiMo and MiMo-V2-Flash."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families import qwen
from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.deepseek import corrected_router, moe_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import ModelSpec


# MiMo, published with its own code: Qwen2, with layers that draft, which are not read.
def mimo_read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Qwen2's."""
    from transformers import Qwen2Config

    return Qwen2Config.from_dict({**raw, "model_type": "qwen2"})


MIMO = Family(("MiMoForCausalLM",), qwen.qwen2_spec, Layout().tensors, config=mimo_read_config)


# MiMo-V2-Flash: layers with a window have twice as many key/value heads and sinks; value heads have their own size.
KINDS = ("full_attention", "sliding_attention")


def mimo_v2_flash_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
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


MIMO_V2_FLASH = Family(
    ("MiMoV2FlashForCausalLM",), mimo_v2_flash_spec, Layout(sinks="self_attn.attention_sink_bias").tensors
)
