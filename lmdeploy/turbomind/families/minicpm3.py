"""MiniCPM3: latent attention, and scaled embeddings, halves of layers and logits."""

import math
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec
from lmdeploy.turbomind.families.latent import latent_attention
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec, OutputSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(
        config,
        checkpoint,
        attention=latent_attention(config),
        block=BlockSpec(residual_scale=config.scale_depth / math.sqrt(config.num_hidden_layers)),
        embedding_scale=float(config.scale_emb),
        output=OutputSpec(scale=config.dim_model_base / config.hidden_size),
    )


FAMILY = Family(("MiniCPM3ForCausalLM",), spec, Layout().tensors)
