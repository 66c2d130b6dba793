"""Granite: Llama, with factors at the embeddings, the residual stream, the scores and the logits."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import llama
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec, OutputSpec


def spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    plain = llama.spec(config, checkpoint, **fields)
    return dataclasses.replace(
        plain,
        attention=dataclasses.replace(plain.attention, scale=config.attention_multiplier),
        block=BlockSpec(residual_scale=config.residual_multiplier),
        output=OutputSpec(scale=1 / config.logits_scaling),
        embedding_scale=config.embedding_multiplier,
    )


FAMILY = Family(("GraniteForCausalLM",), spec, Layout().tensors)
