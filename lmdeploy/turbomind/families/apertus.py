"""Apertus: norms of queries and keys, and an MLP without a gate whose activation, xIELU, is learned."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, refuse_unless
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(config.hidden_act == "xielu", f"activation {config.hidden_act!r} of Apertus")
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        mlp=MlpSpec(is_gated=False, is_xielu=True),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="head"),
    )


_LAYOUT = Layout(attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm")
FAMILY = Family(("ApertusForCausalLM",), spec, _LAYOUT.tensors)
