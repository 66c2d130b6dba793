"""Falcon: parallel attention and MLP, LayerNorm, one matrix for q, k and v; ALiBi in the RW models."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.alibi import alibi_slopes
from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec

LAYOUT = Layout(
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv="self_attention.query_key_value",
    is_grouped=True,
    o="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
_LAYOUT_WITH_TWO_NORMS = dataclasses.replace(LAYOUT, attention_norm="ln_attn", mlp_norm="ln_mlp")


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
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


def tensors(spec: ModelSpec) -> dict[str, Any]:
    """Return the expression of each engine tensor."""
    has_two_norms = spec.block.is_parallel and not spec.block.shares_norm
    return (_LAYOUT_WITH_TWO_NORMS if has_two_norms else LAYOUT).tensors(spec)


FAMILY = Family(
    ("FalconForCausalLM",),
    spec,
    tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
)
