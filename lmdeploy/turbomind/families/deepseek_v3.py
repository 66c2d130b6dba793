"""DeepSeek-V3, R1, Kimi K2 and GLM-4.7-Flash: V2 with sigmoid scores, corrected for the choice alone."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.deepseek import corrected_router, latent_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config; that of Kimi K2 has another name for the same fields."""
    from transformers import CONFIG_MAPPING

    kind = "deepseek_v3" if raw["model_type"] == "kimi_k2" else raw["model_type"]
    return CONFIG_MAPPING[kind].from_dict({**raw, "model_type": kind})


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return latent_spec(config, checkpoint, corrected_router(config), is_interleaved=config.rope_interleave)


FAMILY = Family(("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"), spec, Layout().tensors, config=read_config)
