"""MiMo, published with its own code: Qwen2, with layers that draft, which are not read."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families import qwen2
from lmdeploy.turbomind.families.common import Family
from lmdeploy.turbomind.families.layout import Layout


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Qwen2's."""
    from transformers import Qwen2Config

    return Qwen2Config.from_dict({**raw, "model_type": "qwen2"})


FAMILY = Family(("MiMoForCausalLM",), qwen2.spec, Layout().tensors, config=read_config)
