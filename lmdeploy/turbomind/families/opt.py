"""OPT: learned positions, of which the first two belong to no token, LayerNorm, a plain MLP, biases."""

from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    refuse_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, rows_of
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec

_UNUSED = 2  # first rows of the table of positions


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(config.do_layer_norm_before, "do_layer_norm_before false (OPT-350m)")
    refuse_unless(config.word_embed_proj_dim == config.hidden_size, "word_embed_proj_dim unlike hidden_size")
    refuse_unless(config.layer_norm_elementwise_affine, "norms without weights")
    bias = config.enable_bias
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.ffn_dim,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(1e-5, kind="layer", bias=True),
        learned_positions=config.max_position_embeddings,
        mlp=MlpSpec(activation_of(config.activation_function), is_gated=False, bias=bias),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
        ropes=(),
    )


LAYOUT = Layout(
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    final_norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.{}.",
    attention_norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    o="self_attn.out_proj",
    up="fc1",
    down="fc2",
)


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    count = spec.learned_positions
    table = Load(f"{LAYOUT.positions}.weight", (_UNUSED + count, spec.hidden_size))
    return LAYOUT.tensors(spec) | {"position_embedding": rows_of(table, _UNUSED, _UNUSED + count)}


FAMILY = Family(
    ("OPTForCausalLM",), spec, tensors, sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
)
