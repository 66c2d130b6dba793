"""Qwen 1: q, k and v in one matrix with biases; beyond the trained length dynamic NTK and logn attention."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import plain_rope
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec, StretchSpec

LAYOUT = Layout(
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    qkv="attn.c_attn",
    o="attn.c_proj",
    gate="mlp.w2",  # the published code activates w2
    up="mlp.w1",
    down="mlp.c_proj",
)


def read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return the config in the names that most architectures use."""
    return SimpleNamespace(
        raw=raw,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"] // 2,  # of gate and up together
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw["num_attention_heads"],
        head_dim=raw["kv_channels"],
        max_position_embeddings=raw["max_position_embeddings"],
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
    )


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    raw = config.raw
    trained = raw["seq_length"]
    rope = plain_rope(raw.get("rotary_emb_base", 10000.0), int(config.head_dim * raw.get("rotary_pct", 1.0)))
    if raw.get("use_dynamic_ntk"):
        rope = dataclasses.replace(rope, stretch=StretchSpec("qwen", trained))
    bias = not raw.get("no_bias", True)
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["layer_norm_epsilon"]),
        mlp=MlpSpec("silu", bias=bias),
        attention=attention_spec(
            config, qkv_bias=True, o_bias=bias, logn_length=trained if raw.get("use_logn_attn") else 0
        ),
        ropes=(rope,),
    )


FAMILY = Family(
    ("QWenLMHeadModel",),
    spec,
    LAYOUT.tensors,
    config=read_config,
    sizes=(
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "kv_channels",
        "seq_length", "max_position_embeddings",
    ),
)  # fmt: skip
