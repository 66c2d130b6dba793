"""ChatGLM2, ChatGLM3, GLM-4-9B and CodeGeeX4 with their own code; the engine never runs it."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, refuse_unless
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import plain_rope
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec

LAYOUT = Layout(
    embedding="transformer.embedding.word_embeddings",
    final_norm="transformer.encoder.final_layernorm",
    lm_head="transformer.output_layer",
    layer="transformer.encoder.layers.{}.",
    qkv="self_attention.query_key_value",
    o="self_attention.dense",
    gate_up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
_THETA = 10000.0


def read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return the config in the names that most architectures use."""
    heads = raw["num_attention_heads"]
    kv_heads = raw.get("multi_query_group_num", 1) if raw.get("multi_query_attention") else heads
    return SimpleNamespace(
        raw=raw,
        vocab_size=raw["padded_vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["ffn_hidden_size"],
        num_hidden_layers=raw["num_layers"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=raw.get("kv_channels"),
        max_position_embeddings=raw["seq_length"],
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
    )


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    raw = config.raw
    refuse_unless(raw.get("rmsnorm", True), "ChatGLM with rmsnorm false")
    residual_after_norm = raw.get("apply_residual_connection_post_layernorm", False)
    refuse_unless(not residual_after_norm, "apply_residual_connection_post_layernorm")
    refuse_unless(raw.get("post_layer_norm", True), "ChatGLM with post_layer_norm false")
    bias = raw.get("add_bias_linear", False)
    # Half of a head is rotated, in neighbouring pairs.
    rope = plain_rope(_THETA * raw.get("rope_ratio", 1.0), raw["kv_channels"] // 2)
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["layernorm_epsilon"]),
        mlp=MlpSpec("silu", bias=bias),
        attention=attention_spec(config, qkv_bias=bias or raw.get("add_qkv_bias", False), o_bias=bias),
        ropes=(dataclasses.replace(rope, is_interleaved=True),),
    )


FAMILY = Family(
    ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    spec,
    LAYOUT.tensors,
    config=read_config,
    sizes=(
        "padded_vocab_size", "hidden_size", "ffn_hidden_size", "num_layers", "num_attention_heads", "kv_channels",
        "seq_length",
    ),
)  # fmt: skip
