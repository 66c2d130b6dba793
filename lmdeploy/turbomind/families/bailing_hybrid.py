"""Ling 3.0: Kimi delta attention whose decays are bounded, and gated latent attention in some layers."""

import dataclasses
import functools
from typing import Any

from lmdeploy.turbomind.families.bailing_moe import LAYOUT
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.gated_delta import recurrence_of
from lmdeploy.turbomind.families.kimi_linear import FAMILY as KIMI_LINEAR
from lmdeploy.turbomind.families.kimi_linear import delta_spec, delta_tensors
from lmdeploy.turbomind.families.latent import latent_attention, latent_tensors
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    config.q_lora_rank = getattr(config, "q_lora_rank", None)
    return delta_spec(
        config,
        checkpoint,
        {"decay_bound": -config.kda_lower_bound if config.kda_safe_gate else 0.0},
        attention=latent_attention(config, has_gate=True),
        ropes=(rope_of(config, is_interleaved=True),),
    )


def recurrence(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of Kimi delta attention."""
    names = {"decay_up": "f", "gate_up": "g"}
    return delta_tensors(spec, f"{prefix}attention.", names, (recurrence_of(spec).num_heads,))


LATENT = functools.partial(latent_tensors, names="attention.", o="dense", gate="g_proj", by_head=True)
FAMILY = Family(
    ("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"),
    spec,
    dataclasses.replace(LAYOUT, latent=LATENT, recurrence=recurrence).tensors,
    sizes=KIMI_LINEAR.sizes,
)
