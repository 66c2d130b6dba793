"""GLM-4.5, 4.6 and 4.7: half of a head rotated, experts as in DeepSeek-V3, norms of queries and keys in the largest."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.deepseek import corrected_router, moe_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    has_norms = getattr(config, "use_qk_norm", False)  # GLM-4.5V's configuration lacks it
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=config.attention_bias, qk_norm="head" if has_norms else "none"),
        moe=moe_spec(config, corrected_router(config)),
    )


FAMILY = Family(("Glm4MoeForCausalLM",), spec, Layout().tensors)
