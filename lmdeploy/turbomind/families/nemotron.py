"""Nemotron-4 and Minitron: LayerNorm whose weights start at zero, a plain MLP of squared ReLU, half a head rotated."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.norm_eps, kind="layer", offset=1.0, bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=config.mlp_bias),
        attention=attention_spec(config, qkv_bias=config.attention_bias, o_bias=config.attention_bias),
    )


FAMILY = Family(("NemotronForCausalLM",), spec, Layout().tensors)
