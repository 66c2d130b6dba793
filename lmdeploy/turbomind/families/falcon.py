"""Falcon, Falcon-H1 and BLOOM."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    head_dim_of,
    reject_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mamba import JAMBA_LAYOUT, mamba_spec, mamba_tensors
from lmdeploy.turbomind.families.rope import alibi_slopes, rope_of
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec

# Falcon: parallel attention and MLP, LayerNorm, one matrix for q, k and v; ALiBi in the RW models.
FALCON_LAYOUT = Layout(
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv="self_attention.query_key_value",
    is_grouped=True,
    o="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
_LAYOUT_WITH_TWO_NORMS = dataclasses.replace(FALCON_LAYOUT, attention_norm="ln_attn", mlp_norm="ln_mlp")


def falcon_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    is_new = bool(config.new_decoder_architecture)
    has_two_norms = is_new and config.num_ln_in_parallel_attn != 1
    is_parallel = is_new or bool(config.parallel_attn)
    scale = (config.hidden_size // config.num_attention_heads) ** -0.5
    slopes = alibi_slopes(config.num_attention_heads) if config.alibi else ()
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.ffn_hidden_size,
        num_kv_heads=_kv_heads(config, is_new),
        norm=NormSpec(config.layer_norm_epsilon, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.activation), is_gated=False, bias=bool(config.bias)),
        block=BlockSpec(is_parallel=is_parallel, shares_norm=is_parallel and not has_two_norms),
        attention=attention_spec(
            config,
            qkv_bias=bool(config.bias),
            o_bias=bool(config.bias),
            # The biases are added before the scores are scaled.
            alibi_slopes=tuple(slope * scale for slope in slopes),
        ),
        ropes=() if config.alibi else (rope_of(config),),
    )


def _kv_heads(config: Any, is_new: bool) -> int:
    if is_new:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else int(config.num_attention_heads)


def falcon_tensors(spec: ModelSpec) -> dict[str, Any]:
    has_two_norms = spec.block.is_parallel and not spec.block.shares_norm
    return (_LAYOUT_WITH_TWO_NORMS if has_two_norms else FALCON_LAYOUT).tensors(spec)


FALCON = Family(
    ("FalconForCausalLM",),
    falcon_spec,
    falcon_tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
)


# Falcon's first releases, published with their own code, which is never run.
def rw_config(raw: Mapping[str, Any]) -> Any:
    """Return the ``FalconConfig``; what has a number of key and value heads is of the later kind (40B)."""
    from transformers import FalconConfig

    fields = dict(raw) | {"num_hidden_layers": raw["n_layer"], "num_attention_heads": raw["n_head"]}
    if raw.get("n_head_kv"):
        fields |= {"num_kv_heads": raw["n_head_kv"], "new_decoder_architecture": True}
    return FalconConfig.from_dict(fields | {"model_type": "falcon"})


RW_SIZES = ("vocab_size", "hidden_size", "n_layer", "n_head")
RW = Family(("RWForCausalLM",), falcon_spec, falcon_tensors, config=rw_config, sizes=RW_SIZES)


# BLOOM: ALiBi, LayerNorm, also of the embeddings, a plain MLP, biases everywhere.
_TRAINED = 2048  # tokens of a text; ALiBi itself has no limit, and configs do not name one


def bloom_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not config.apply_residual_connection_post_layernorm, "apply_residual_connection_post_layernorm")
    config.max_position_embeddings = getattr(config, "seq_length", None) or _TRAINED
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=4 * config.hidden_size,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.layer_norm_epsilon, kind="layer", bias=True),
        has_embedding_norm=True,
        mlp=MlpSpec("gelu_tanh", is_gated=False, bias=True),
        attention=attention_spec(
            config, qkv_bias=True, o_bias=True, alibi_slopes=alibi_slopes(config.num_attention_heads)
        ),
        ropes=(),
    )


BLOOM_LAYOUT = dataclasses.replace(FALCON_LAYOUT, embedding_norm="transformer.word_embeddings_layernorm")
BLOOM = Family(("BloomForCausalLM",), bloom_spec, BLOOM_LAYOUT.tensors, sizes=("vocab_size", "hidden_size|n_embed"))


# Falcon-H1: attention and Mamba-2 side by side in each layer, and a factor at every turn.
def falcon_h1_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec. Factors of what linear layers without biases give are joined."""
    has_bias = config.attention_bias or config.mlp_bias or config.mamba_proj_bias or config.projectors_bias
    reject_unless(not has_bias, "a bias alongside the factors of Falcon-H1")
    into = config.attention_in_multiplier
    attention = attention_spec(
        config,
        scale=head_dim_of(config) ** -0.5 * into**2 * config.key_multiplier,
        value_scale=into * config.attention_out_multiplier,
    )
    gate, values, keys, queries, steps = (config.ssm_in_multiplier * factor for factor in config.ssm_multipliers)
    norm = {"norms_gated": not config.mamba_norm_before_gate} if config.mamba_rms_norm else {"norm": "none"}
    recurrence = mamba_spec(
        config,
        **norm,
        query_scale=queries,
        key_scale=keys,
        value_scale=values,
        gate_scale=gate,
        step_scale=steps,
        output_scale=config.ssm_out_multiplier,
    )
    gate_scale, up_scale = config.mlp_multipliers
    return decoder_spec(
        config,
        checkpoint,
        attention=attention,
        mlp=MlpSpec(activation_of(config.hidden_act), gate_scale=gate_scale, up_scale=up_scale),
        output=OutputSpec(scale=config.lm_head_multiplier),
        embedding_scale=config.embedding_multiplier,
        layer_mixers=("both",) * config.num_hidden_layers,
        recurrence=recurrence,
    )


FALCON_H1_LAYOUT = dataclasses.replace(
    JAMBA_LAYOUT, recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mamba.")
)
FALCON_H1 = Family(("FalconH1ForCausalLM",), falcon_h1_spec, FALCON_H1_LAYOUT.tensors)
