"""SmolLM3: Llama, with layers that do not rotate."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import llama
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    # The config's list says 1 where a layer rotates, whatever its name.
    layer_ropes = tuple(0 if rotates else -1 for rotates in config.no_rope_layers)
    return dataclasses.replace(llama.spec(config, checkpoint), layer_ropes=layer_ropes)


FAMILY = Family(("SmolLM3ForCausalLM",), spec, Layout().tensors)
