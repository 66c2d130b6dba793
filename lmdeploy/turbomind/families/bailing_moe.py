"""Ling and Ring with experts, published with their own code: the first (Ling-lite, -plus), and version 2.

The first are Llama with experts as in DeepSeek-MoE; version 2 norms queries and keys, rotates part of a head, and
chooses experts as DeepSeek-V3 does.
"""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import (
    SIZES,
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    llama_config,
    reject_unless,
)
from lmdeploy.turbomind.families.deepseek import corrected_router, moe_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, RouterSpec

_DEFAULTS = {
    "first_k_dense_replace": 0,
    "norm_head": False,
    "norm_topk_prob": False,
    "num_shared_experts": 0,
    "partial_rotary_factor": 1.0,
    "use_bias": False,
    "use_qkv_bias": False,
}


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config, experts by DeepSeek's names."""
    fields = _DEFAULTS | {name: value for name, value in raw.items() if value is not None}
    partial = fields.pop("partial_rotary_factor")
    config = llama_config(fields, n_routed_experts=fields["num_experts"], n_shared_experts=fields["num_shared_experts"])
    config.rope_parameters["partial_rotary_factor"] = partial
    return config


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not config.norm_head, "norm_head")
    reject_unless(not config.use_bias, "use_bias with experts")
    is_second = checkpoint.architecture == "BailingMoeV2ForCausalLM"
    if is_second:
        score = getattr(config, "score_function", "sigmoid")
        reject_unless(score == "sigmoid", f"score_function {score!r}")
    router = corrected_router(config) if is_second else RouterSpec(normalizes=config.norm_topk_prob)
    return decoder_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act)),
        attention=attention_spec(config, qkv_bias=config.use_qkv_bias, qk_norm="head" if is_second else "none"),
        moe=moe_spec(config, router),
    )


LAYOUT = Layout(
    embedding="model.word_embeddings",
    qkv="attention.query_key_value",
    q_norm="attention.query_layernorm",
    k_norm="attention.key_layernorm",
    o="attention.dense",
    experts=ExpertNames(correction="mlp.gate.expert_bias").tensors,
)
FAMILY = Family(
    ("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
    spec,
    LAYOUT.tensors,
    config=read_config,
    sizes=(*SIZES, "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)
