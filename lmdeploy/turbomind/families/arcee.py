"""Arcee (AFM): Llama with a plain MLP of squared ReLU."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import llama
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    plain = llama.spec(config, checkpoint)
    return dataclasses.replace(plain, mlp=dataclasses.replace(plain.mlp, is_gated=False))


FAMILY = Family(("ArceeForCausalLM",), spec, Layout().tensors)
