"""OLMo 2 and 3: norms after attention and MLP alone, and over all queries and all keys; OLMo 3 has windows in some."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec

_KINDS = ("full_attention", "sliding_attention")


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; OLMo 3 scales the rotation of layers without a window alone."""
    bias = config.attention_bias
    fields: dict[str, Any] = {}
    if checkpoint.architecture == "Olmo3ForCausalLM":
        fields["ropes"] = tuple(rope_of(config, kind) for kind in _KINDS)
        fields["layer_ropes"] = tuple(_KINDS.index(kind) for kind in config.layer_types)
    return decoder_spec(
        config,
        checkpoint,
        block=BlockSpec(has_input_norms=False, has_output_norms=True),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="projection"),
        **fields,
    )


LAYOUT = Layout(attention_output_norm="post_attention_layernorm", mlp_output_norm="post_feedforward_layernorm")
FAMILY = Family(("Olmo2ForCausalLM", "Olmo3ForCausalLM"), spec, LAYOUT.tensors)
