"""Granite 4: Granite, with Mamba-2 in most layers; a dense MLP alongside experts, or alone."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import granite
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.gated_delta import MIXERS
from lmdeploy.turbomind.families.granite_moe import experts
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mamba import mamba_spec, mamba_tensors
from lmdeploy.turbomind.families.mixtral import moe_spec
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    config.mlp_bias = False
    moe = None
    if config.num_local_experts:
        moe = moe_spec(config, RouterSpec(normalizes=True))
        moe = dataclasses.replace(moe, shared_intermediate_size=config.shared_intermediate_size)
    else:
        config.intermediate_size = config.shared_intermediate_size
    mixers = tuple(MIXERS.get(kind, kind) for kind in config.layer_types)
    return granite.spec(
        config,
        checkpoint,
        moe=moe,
        layer_mixers=mixers,
        recurrence=mamba_spec(config) if "recurrence" in mixers else None,
        ropes=(rope_of(config),) if config.position_embedding_type == "rope" else (),
    )


LAYOUT = Layout(
    gate_up="shared_mlp.input_linear",
    down="shared_mlp.output_linear",
    experts=experts,
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mamba."),
)
FAMILY = Family(("GraniteMoeHybridForCausalLM",), spec, LAYOUT.tensors)
