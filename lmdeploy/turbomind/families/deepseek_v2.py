"""DeepSeek-V2, V2-Lite, V2.5: latent attention, and experts chosen from the best groups of them."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, refuse_unless
from lmdeploy.turbomind.families.deepseek import latent_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec

_METHODS = ("greedy", "group_limited_greedy")


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    method = config.topk_method
    refuse_unless(method in _METHODS, f"topk_method {method!r}")
    # The published code scales either the normalised or the plain weights; every published checkpoint has the latter.
    refuse_unless(not config.norm_topk_prob, "norm_topk_prob")
    is_grouped = method == "group_limited_greedy"
    router = RouterSpec(
        scale=config.routed_scaling_factor,
        groups=config.n_group if is_grouped else 1,
        top_groups=config.topk_group if is_grouped else 1,
    )
    return latent_spec(config, checkpoint, router, is_interleaved=True)


FAMILY = Family(("DeepseekV2ForCausalLM",), spec, Layout().tensors)
