"""GLM-4 as ``transformers`` publishes it: GLM-4-9B (Glm) and the 0414 releases (Glm4), which norm outputs too.

The text part of GLM-4.1V is a 0414 that always has biases, so that its config does not say so.
"""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec

# Both norms of the 0414 releases that are not Glm's are after attention and MLP.
LAYOUT = Layout(
    gate_up="mlp.gate_up_proj",
    attention_output_norm="post_self_attn_layernorm",
    mlp_output_norm="post_mlp_layernorm",
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=getattr(config, "attention_bias", True)),
        block=BlockSpec(has_output_norms=checkpoint.architecture == "Glm4ForCausalLM"),
        ropes=(rope_of(config, is_interleaved=True),),
    )


FAMILY = Family(("GlmForCausalLM", "Glm4ForCausalLM"), spec, LAYOUT.tensors)
