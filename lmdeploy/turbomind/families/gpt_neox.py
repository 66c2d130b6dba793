"""GPT-NeoX, Pythia, Dolly: LayerNorm, a plain MLP, one matrix for q, k and v, part of a head rotated."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.layer_norm_eps, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        block=BlockSpec(is_parallel=config.use_parallel_residual),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
    )


LAYOUT = Layout(
    embedding="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    lm_head="embed_out",
    layer="gpt_neox.layers.{}.",
    qkv="attention.query_key_value",
    is_grouped=True,
    o="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
FAMILY = Family(("GPTNeoXForCausalLM",), spec, LAYOUT.tensors)
