"""DeepSeek-MoE 16B, published with its own code: Llama's attention, many small experts and some for every token."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import SIZES, Checkpoint, Family, decoder_spec, refuse_unless
from lmdeploy.turbomind.families.deepseek import moe_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.own_code import llama_config
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec

_DEFAULTS = {"moe_layer_freq": 1, "first_k_dense_replace": 0, "n_shared_experts": None, "norm_topk_prob": False}


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config, with the published code's defaults."""
    return llama_config(_DEFAULTS | dict(raw))


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    scoring = getattr(config, "scoring_func", "softmax")
    refuse_unless(scoring == "softmax", f"scoring_func {scoring!r}")
    refuse_unless(not config.attention_bias, "attention_bias")
    return decoder_spec(config, checkpoint, moe=moe_spec(config, RouterSpec(normalizes=config.norm_topk_prob)))


FAMILY = Family(
    ("DeepseekForCausalLM",),
    spec,
    Layout().tensors,
    config=read_config,
    sizes=(*SIZES, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
)
