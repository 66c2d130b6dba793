"""GLM: ChatGLM2 and 3, GLM-4, GLM-4.5 to 4.7, CogVLM and CogVLM2; Solar Open, whose layers are GLM-4.5's."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import (
    SIZES,
    Checkpoint,
    Family,
    attention_spec,
    decoder_spec,
    llama_config,
    reject_unless,
)
from lmdeploy.turbomind.families.deepseek import corrected_router, moe_spec
from lmdeploy.turbomind.families.image_weights import OwnWeights
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope, rope_of
from lmdeploy.turbomind.spec import BlockSpec, ImagesSpec, MlpSpec, ModelSpec, NormSpec

# GLM-4 as ``transformers`` publishes it: GLM-4-9B (Glm) and the 0414 releases (Glm4), which norm outputs too.
#
# The text part of GLM-4.1V is a 0414 that always has biases, so that its config does not say so; that of
# GLM-OCR never has.
# Both norms of the 0414 releases that are not Glm's are after attention and MLP.
GLM_LAYOUT = Layout(
    gate_up="mlp.gate_up_proj",
    attention_output_norm="post_self_attn_layernorm",
    mlp_output_norm="post_mlp_layernorm",
)


def glm_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(
            config, qkv_bias=getattr(config, "attention_bias", config.model_type != "glm_ocr_text")
        ),
        block=BlockSpec(has_output_norms=checkpoint.architecture == "Glm4ForCausalLM"),
        ropes=(rope_of(config, is_interleaved=True),),
    )


GLM = Family(("GlmForCausalLM", "Glm4ForCausalLM"), glm_spec, GLM_LAYOUT.tensors)


# GLM-4.5, 4.6 and 4.7: half of a head rotated, experts as in DeepSeek-V3, norms of queries and keys in the largest.
def glm4_moe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    has_norms = getattr(config, "use_qk_norm", False)  # GLM-4.5V's configuration lacks it
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=config.attention_bias, qk_norm="head" if has_norms else "none"),
        moe=moe_spec(config, corrected_router(config)),
    )


GLM4_MOE = Family(("Glm4MoeForCausalLM",), glm4_moe_spec, Layout().tensors)


# Solar Open: GLM-4.5 with experts in every layer.
def solar_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; no layer has the dense MLP that must have a size."""
    config.intermediate_size = config.moe_intermediate_size
    return glm4_moe_spec(config, checkpoint)


SOLAR_SIZES = (*SIZES[:-1], "moe_intermediate_size")
SOLAR_OPEN = Family(("SolarOpenForCausalLM",), solar_spec, Layout().tensors, sizes=SOLAR_SIZES)


# ChatGLM2, ChatGLM3, GLM-4-9B and CodeGeeX4 with their own code; the engine never runs it.
CHATGLM_LAYOUT = Layout(
    embedding="transformer.embedding.word_embeddings",
    final_norm="transformer.encoder.final_layernorm",
    lm_head="transformer.output_layer",
    layer="transformer.encoder.layers.{}.",
    qkv="self_attention.query_key_value",
    o="self_attention.dense",
    gate_up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
_CHATGLM_THETA = 10000.0


def chatglm_read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
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


def chatglm_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    raw = config.raw
    reject_unless(raw.get("rmsnorm", True), "ChatGLM with rmsnorm false")
    residual_after_norm = raw.get("apply_residual_connection_post_layernorm", False)
    reject_unless(not residual_after_norm, "apply_residual_connection_post_layernorm")
    reject_unless(raw.get("post_layer_norm", True), "ChatGLM with post_layer_norm false")
    bias = raw.get("add_bias_linear", False)
    # Half of a head is rotated, in neighbouring pairs.
    rope = default_rope(_CHATGLM_THETA * raw.get("rope_ratio", 1.0), raw["kv_channels"] // 2)
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["layernorm_epsilon"]),
        mlp=MlpSpec("silu", bias=bias),
        attention=attention_spec(config, qkv_bias=bias or raw.get("add_qkv_bias", False), o_bias=bias),
        ropes=(dataclasses.replace(rope, is_interleaved=True),),
    )


CHATGLM = Family(
    ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    chatglm_spec,
    CHATGLM_LAYOUT.tensors,
    config=chatglm_read_config,
    sizes=(
        "padded_vocab_size", "hidden_size", "ffn_hidden_size", "num_layers", "num_attention_heads", "kv_channels",
        "seq_length",
    ),
)  # fmt: skip


# CogVLM and CogVLM2: Llama with weights of their own for rows of images in every linear layer of a layer.
COGVLM_LAYOUT = Layout(
    qkv="self_attn.language_expert_query_key_value",
    o="self_attn.language_expert_dense",
    gate="mlp.language_mlp.gate_proj",
    up="mlp.language_mlp.up_proj",
    down="mlp.language_mlp.down_proj",
    images=OwnWeights(
        qkv="self_attn.vision_expert_query_key_value",
        o="self_attn.vision_expert_dense",
        gate="mlp.vision_mlp.gate_proj",
        up="mlp.vision_mlp.up_proj",
        down="mlp.vision_mlp.down_proj",
    ).tensors,
)
_COGVLM_THETA, _THETA_2 = 10000.0, 500000.0  # in the authors' code, of CogVLM and of CogVLM2


def cogvlm_read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Llama's."""
    kv_heads = raw.get("num_multi_query_heads")
    theta = raw.get("rope_theta") or (_THETA_2 if kv_heads else _COGVLM_THETA)
    return llama_config(raw, num_key_value_heads=kv_heads or raw["num_attention_heads"], rope_theta=theta)


def cogvlm_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    is_second = bool(getattr(config, "num_multi_query_heads", None))
    images = ImagesSpec(own_attention=True, own_mlp=True, own_bias=is_second, own_on_grid=True)
    return decoder_spec(config, checkpoint, images=images)


COGVLM = Family(("CogVLMForCausalLM",), cogvlm_spec, COGVLM_LAYOUT.tensors, config=cogvlm_read_config)
