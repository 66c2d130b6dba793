"""Falcon-H1: attention and Mamba-2 side by side in each layer, and a factor at every turn."""

from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    head_dim_of,
    refuse_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mamba import mamba_spec, mamba_tensors
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, OutputSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec. Factors of what linear layers without biases give are joined."""
    has_bias = config.attention_bias or config.mlp_bias or config.mamba_proj_bias or config.projectors_bias
    refuse_unless(not has_bias, "a bias alongside the factors of Falcon-H1")
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


LAYOUT = Layout(
    final_norm="model.final_layernorm",
    mlp_norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mamba."),
)
FAMILY = Family(("FalconH1ForCausalLM",), spec, LAYOUT.tensors)
