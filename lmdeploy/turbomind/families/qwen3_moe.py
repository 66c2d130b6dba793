"""Qwen3-MoE: Qwen3, some or all of its layers with experts."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import qwen3
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.qwen2_moe import moe_spec
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return dataclasses.replace(qwen3.spec(config, checkpoint), moe=moe_spec(config))


FAMILY = Family(("Qwen3MoeForCausalLM",), spec, Layout().tensors)
