"""InternLM-XComposer2 and 2.5: InternLM2 whose linear layers add low-rank matrices for rows of images."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import internlm2
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.image_weights import with_low_rank
from lmdeploy.turbomind.families.own_code import llama_config
from lmdeploy.turbomind.spec import ImagesSpec, ModelSpec

LOW_RANK = 256  # fixed in the authors' code, with a factor of 1
LAYOUT = with_low_rank(internlm2.LAYOUT, "Plora_A", "Plora_B")


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return dataclasses.replace(internlm2.spec(config, checkpoint), images=ImagesSpec(low_rank=LOW_RANK))


FAMILY = Family(("InternLMXComposer2ForCausalLM",), spec, LAYOUT.tensors, config=llama_config)
