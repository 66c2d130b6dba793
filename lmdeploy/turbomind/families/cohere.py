"""Command R (Cohere), R7B and A (Cohere2): parallel halves that share a LayerNorm without bias, scaled logits."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    bias = config.attention_bias
    # Cohere2 rotates in layers with a window alone.
    kinds = getattr(config, "layer_types", None) or ()
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.layer_norm_eps, kind="layer"),
        mlp=MlpSpec(activation_of(config.hidden_act)),
        block=BlockSpec(is_parallel=True, shares_norm=True),
        attention=attention_spec(
            config,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm="each_head" if getattr(config, "use_qk_norm", False) else "none",
        ),
        ropes=(rope_of(config, is_interleaved=True),),
        layer_ropes=tuple(0 if kind == "sliding_attention" else -1 for kind in kinds),
        output=OutputSpec(scale=config.logit_scale),
    )


FAMILY = Family(("CohereForCausalLM", "Cohere2ForCausalLM"), spec, Layout().tensors)
