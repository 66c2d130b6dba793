"""OLMoE: experts in every layer, and norms over all queries and over all keys of a token."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, refuse_unless
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(not config.clip_qkv, f"clip_qkv {config.clip_qkv} after norms of queries and keys")
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="projection"),
        moe=MoeSpec(
            num_experts=config.num_experts,
            experts_per_token=config.num_experts_per_tok,
            intermediate_size=config.intermediate_size,
            router=RouterSpec(normalizes=config.norm_topk_prob),
        ),
    )


FAMILY = Family(("OlmoeForCausalLM",), spec, Layout().tensors)
