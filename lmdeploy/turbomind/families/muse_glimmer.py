"""The text part of Muse Glimmer: gated attention, which rotates in layers with a window alone, norms of all outputs."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    head_dim_of,
    reject_unless,
)
from lmdeploy.turbomind.families.gemma import LATER_LAYOUT
from lmdeploy.turbomind.manifest import Constant, Expression
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not config.attention_bias, "attention_bias with gated attention")
    scale = config.qk_scale_factor * head_dim_of(config) ** -0.5
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.rms_norm_eps, offset=1.0),
        block=BlockSpec(has_output_norms=True, output_norm_eps=config.post_norm_eps),
        mlp=MlpSpec(activation_of(config.hidden_activation)),
        attention=attention_spec(config, scale=scale, qk_norm="head", has_output_gate=True),
        layer_ropes=tuple(0 if theta else -1 for theta in config.layer_rope_theta),
        output=OutputSpec(config.output_multiplier, config.final_logit_softcapping or 0.0, has_plain_norm=True),
        has_embedding_norm=True,
    )


def _tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; embeddings, queries and keys have norms without weights."""
    engine = dataclasses.replace(LATER_LAYOUT, output_gate="self_attn.gate_proj").tensors(spec)
    bare = ("embedding_norm.weight", "q_norm.weight", "k_norm.weight")
    return {name: Constant(x.shape, 0.0) if name.endswith(bare) else x for name, x in engine.items()}


FAMILY = Family(("MuseGlimmerTextModel",), spec, _tensors)
