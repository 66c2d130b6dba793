"""DeepSeek-V3 and R1: V2 with sigmoid scores, and a learned correction of them for the choice alone."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.deepseek import latent_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    router = RouterSpec(
        score="sigmoid",
        normalizes=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        groups=config.n_group,
        top_groups=config.topk_group,
        group_score="top2",
        has_correction=True,
    )
    return latent_spec(config, checkpoint, router, is_interleaved=config.rope_interleave)


FAMILY = Family(("DeepseekV3ForCausalLM",), spec, Layout().tensors)
