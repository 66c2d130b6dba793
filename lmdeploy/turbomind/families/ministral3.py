"""Ministral 3: Mistral whose queries grow with their position, beyond the length before YaRN."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def temperature(config: Any) -> dict[str, Any]:
    """Return the fields of attention that say how queries grow."""
    parameters = config.rope_parameters
    scale = parameters.get("llama_4_scaling_beta")
    if not scale:
        return {}
    length = int(parameters["original_max_position_embeddings"])
    return {"temperature_scale": float(scale), "temperature_length": length}


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(config, checkpoint, attention=attention_spec(config, **temperature(config)))


FAMILY = Family(("Ministral3ForCausalLM",), spec, Layout().tensors)
