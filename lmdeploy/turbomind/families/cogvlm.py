"""CogVLM and CogVLM2: Llama with weights of their own for rows of images in every linear layer of a layer."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.image_weights import OwnWeights
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import plain_rope
from lmdeploy.turbomind.spec import ImagesSpec, MlpSpec, ModelSpec, NormSpec

LAYOUT = Layout(
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
_THETA, _THETA_2 = 10000.0, 500000.0  # in the authors' code, of CogVLM and of CogVLM2


def read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return the config in the names that most architectures use."""
    return SimpleNamespace(
        raw=raw,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw.get("num_multi_query_heads") or raw["num_attention_heads"],
        max_position_embeddings=raw["max_position_embeddings"],
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
    )


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    raw = config.raw
    is_second = bool(raw.get("num_multi_query_heads"))
    theta = raw.get("rope_theta") or (_THETA_2 if is_second else _THETA)
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["rms_norm_eps"]),
        mlp=MlpSpec(activation_of(raw.get("hidden_act", "silu"))),
        attention=attention_spec(config),
        ropes=(plain_rope(theta, config.hidden_size // config.num_attention_heads),),
        images=ImagesSpec(own_attention=True, own_mlp=True, own_bias=is_second, own_on_grid=True),
    )


FAMILY = Family(("CogVLMForCausalLM",), spec, LAYOUT.tensors, config=read_config)
