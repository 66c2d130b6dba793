"""Molmo and MolmoE."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope
from lmdeploy.turbomind.manifest import Expression, Load, concat, rows_of
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormSpec

# Molmo in OLMo's names: 7B-D and 72B are Qwen2, 7B-O is OLMo with norms after its halves and of queries and keys.
#
# 128 further embeddings are there to write images with.
EMBEDDING = "model.transformer.wte.embedding"
MOLMO_LAYOUT = Layout(
    final_norm="model.transformer.ln_f",
    lm_head="model.transformer.ff_out",
    layer="model.transformer.blocks.{}.",
    attention_norm="attn_norm",
    mlp_norm="ff_norm",
    qkv="att_proj",
    q_norm="q_norm",
    k_norm="k_norm",
    o="attn_out",
    gate_up="ff_proj",
    down="ff_out",
)


def molmo_read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return the config in the names that most architectures use."""
    return SimpleNamespace(
        raw=raw,
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"] // 2,  # of gate and up together
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        max_position_embeddings=raw["max_position_embeddings"],
        tie_word_embeddings=raw.get("weight_tying", False),
    )


def molmo_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    raw = config.raw
    reject_differences(raw)
    norm_after = bool(raw.get("norm_after"))
    head_dim = config.hidden_size // config.num_attention_heads
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["layer_norm_eps"]),
        mlp=MlpSpec("silu"),
        block=BlockSpec(has_input_norms=not norm_after, has_output_norms=norm_after),
        attention=attention_spec(config, qkv_bias=raw["qkv_bias"], qk_norm=qk_norm_of(raw)),
        ropes=(default_rope(raw["rope_theta"], head_dim),),
    )


def reject_differences(raw: Mapping[str, Any]) -> None:
    """Raise ``UnsupportedModelError`` for fields of OLMo's with values that no published Molmo has."""
    kind = raw.get("layer_norm_type", "rms")
    reject_unless(kind == "rms", f"Molmo with layer_norm_type {kind}")
    reject_unless(not raw.get("clip_qkv"), f"Molmo with clip_qkv {raw.get('clip_qkv')}")
    for field in ("include_bias", "alibi", "scale_logits", "moe_shared_expert", "moe_interleave"):
        reject_unless(not raw.get(field), f"Molmo with {field}")


def qk_norm_of(raw: Mapping[str, Any]) -> str:
    """Return which norm queries and keys have."""
    return "projection" if raw.get("attention_layer_norm") else "none"


def molmo_tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; what is up comes before the gate on disk."""
    layout = MOLMO_LAYOUT
    if spec.block.has_output_norms:  # the same tensors, elsewhere
        layout = dataclasses.replace(layout, attention_output_norm="attn_norm", mlp_output_norm="ff_norm")
    engine = layout.tensors(spec)
    engine["token_embedding"] = Load(EMBEDDING, (spec.vocab_size, spec.hidden_size))
    size = spec.intermediate_size
    for layer in range(spec.num_layers):
        name = f"layers.{layer}.mlp.gate_up.weight"
        engine[name] = concat(rows_of(engine[name], size, 2 * size), rows_of(engine[name], 0, size))
    return engine


MOLMO = Family(
    ("MolmoForCausalLM",),
    molmo_spec,
    molmo_tensors,
    config=molmo_read_config,
    sizes=(
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings",
    ),
)  # fmt: skip


# MolmoE: OLMoE in the names of its authors' code, with norms over all queries and over all keys of a token.
MOLMOE_LAYOUT = Layout(
    final_norm="model.transformer.ln_f",
    lm_head="model.transformer.ff_out",
    layer="model.transformer.blocks.{}.",
    attention_norm="attn.attn_norm",
    mlp_norm="mlp.ff_norm",
    qkv="attn.att_proj",
    q_norm="attn.q_norm",
    k_norm="attn.k_norm",
    o="attn.attn_out",
)


def molmoe_read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return the config in the names that most architectures use."""
    inner = raw.get("mlp_hidden_size") or raw["mlp_ratio"] * raw["d_model"]
    return SimpleNamespace(
        raw=raw,
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        hidden_size=raw["d_model"],
        intermediate_size=inner // 2,  # of gate and up together
        num_hidden_layers=raw["n_layers"],
        num_attention_heads=raw["n_heads"],
        num_key_value_heads=raw.get("n_kv_heads") or raw["n_heads"],
        head_dim=raw.get("head_dim"),
        max_position_embeddings=raw.get("max_position_embeddings") or raw["max_sequence_length"],
        tie_word_embeddings=raw.get("weight_tying", False),
    )


def molmoe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    raw = config.raw
    reject_unless(raw.get("model_type") == "molmo", "OLMo in its first layout (use allenai/OLMo-7B-hf, or OLMo 2)")
    reject_differences(raw)
    reject_unless(not raw.get("norm_after"), "MolmoE with norm_after")
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["layer_norm_eps"]),
        mlp=MlpSpec("silu"),
        attention=attention_spec(config, qkv_bias=bool(raw.get("qkv_bias")), qk_norm=qk_norm_of(raw)),
        ropes=(default_rope(raw["rope_theta"], config.hidden_size // config.num_attention_heads),),
        moe=MoeSpec(
            num_experts=raw["moe_num_experts"],
            experts_per_token=raw["moe_top_k"],
            intermediate_size=config.intermediate_size,
        ),
    )


def molmoe_tensors(spec: ModelSpec) -> dict[str, Expression]:
    engine = MOLMOE_LAYOUT.tensors(spec)
    return engine | {"token_embedding": Load(EMBEDDING, (spec.vocab_size, spec.hidden_size))}


MOLMOE = Family(
    ("OLMoForCausalLM",),
    molmoe_spec,
    molmoe_tensors,
    config=molmoe_read_config,
    sizes=("vocab_size", "d_model", "n_layers", "n_heads", "moe_num_experts", "moe_top_k"),
)
