"""EXAONE 4: norms after attention and MLP alone; where layers have windows, the others do not rotate."""

from typing import Any

from lmdeploy.turbomind.families import olmo
from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    rotates = [config.sliding_window is None or kind == "sliding_attention" for kind in config.layer_types]
    return decoder_spec(
        config,
        checkpoint,
        block=BlockSpec(has_input_norms=False, has_output_norms=True),
        attention=attention_spec(config, qk_norm="head"),
        layer_ropes=tuple(0 if own else -1 for own in rotates),
    )


FAMILY = Family(("Exaone4ForCausalLM",), spec, olmo.OLMO2_LAYOUT.tensors)
