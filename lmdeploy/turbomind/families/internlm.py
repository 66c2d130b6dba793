"""InternLM and InternLM3: Llama's tensors, with biases where the config says so; published with their own code."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.own_code import llama_config
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Llama's; InternLM 1 has its own words for dynamic scaling."""
    rotary = raw.get("rotary") or {}
    changes: dict[str, Any] = {}
    if rotary.get("base"):
        changes["rope_theta"] = rotary["base"]
    if rotary.get("type") == "dynamic":
        changes["rope_scaling"] = {"rope_type": "dynamic", "factor": rotary.get("scaling_factor", 1.0)}
    config = llama_config(raw, **changes)
    config.has_bias = bool(raw.get("bias", False))
    config.has_qkv_bias = bool(raw.get("qkv_bias", config.has_bias))
    return config


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    attention = attention_spec(config, qkv_bias=config.has_qkv_bias, o_bias=config.has_bias)
    # InternLM 1 has no biases in its MLP.
    mlp_bias = config.has_bias and checkpoint.architecture == "InternLM3ForCausalLM"
    return decoder_spec(config, checkpoint, attention=attention, mlp=MlpSpec("silu", bias=mlp_bias))


FAMILY = Family(("InternLMForCausalLM", "InternLM3ForCausalLM"), spec, Layout().tensors, config=read_config)
