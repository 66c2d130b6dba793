"""dots.llm1: Qwen3's attention, experts as in DeepSeek-V3."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import qwen3
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.deepseek import corrected_router, moe_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return dataclasses.replace(qwen3.spec(config, checkpoint), moe=moe_spec(config, corrected_router(config)))


FAMILY = Family(("Dots1ForCausalLM",), spec, Layout().tensors)
