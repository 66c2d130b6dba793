"""MiniCPM: scaled embeddings, halves of layers and logits; MiniCPM3: latent attention besides."""

import math
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec, llama_config, reject_unless
from lmdeploy.turbomind.families.latent import latent_attention
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec, OutputSpec


def factors(config: Any) -> dict[str, Any]:
    """Return the fields of a spec that MiniCPM adds to Llama's."""
    return {
        "block": BlockSpec(residual_scale=config.scale_depth / math.sqrt(config.num_hidden_layers)),
        "embedding_scale": float(config.scale_emb),
        "output": OutputSpec(scale=config.dim_model_base / config.hidden_size),
    }


MINICPM3 = Family(
    ("MiniCPM3ForCausalLM",),
    lambda config, checkpoint: decoder_spec(config, checkpoint, attention=latent_attention(config), **factors(config)),
    Layout().tensors,
)


# MiniCPM 1, 2 and 4, published with their own code.
def minicpm_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not getattr(config, "num_experts", 0), "num_experts")
    reject_unless(not getattr(config, "sparse_config", None), "sparse_config")
    return decoder_spec(config, checkpoint, **factors(config))


MINICPM = Family(
    ("MiniCPMForCausalLM",),
    minicpm_spec,
    Layout().tensors,
    config=lambda raw: llama_config({"tie_word_embeddings": True} | dict(raw)),
)
