"""Mamba-2: layers that are a recurrence alone."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mamba import mamba_spec, mamba_tensors
from lmdeploy.turbomind.spec import AttentionSpec, ModelSpec, NormSpec

LONGEST = 1 << 20  # tokens of a sequence: nothing in the model depends on it


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec. No layer has the heads and the MLP that must have a size."""
    config.num_attention_heads, config.head_dim, config.max_position_embeddings = 1, 2, LONGEST
    recurrence = mamba_spec(
        config,
        num_heads=config.num_heads,
        num_key_heads=config.n_groups,
        key_dim=config.state_size,
        value_dim=config.hidden_size * config.expand // config.num_heads,
        conv_kernel=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
    )
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=1,
        intermediate_size=1,
        norm=NormSpec(config.layer_norm_epsilon),
        attention=AttentionSpec(1.0),
        ropes=(),
        layer_mixers=("recurrence",) * config.num_hidden_layers,
        layer_mlps=(False,) * config.num_hidden_layers,
        recurrence=recurrence,
    )


LAYOUT = Layout(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    attention_norm="norm",
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mixer."),
)
FAMILY = Family(("Mamba2ForCausalLM",), spec, LAYOUT.tensors, sizes=("vocab_size", "hidden_size", "num_hidden_layers"))
