"""ERNIE 4.5, dense and with experts, and the text part of PaddleOCR-VL."""

from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    reject_unless,
)
from lmdeploy.turbomind.families.experts import ExpertNames, moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression, Load, reshape
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, MoeSpec, RouterSpec


# ERNIE 4.5, dense: Llama whose pairs of dimensions that rotate are neighbours, with biases or without.
# PaddleOCR-VL's text part rotates the dimensions as Llama does.
def ernie4_5_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with further fields."""
    bias = config.use_bias
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
        mlp=MlpSpec(activation_of(config.hidden_act), bias=bias),
        ropes=(rope_of(config, is_interleaved=checkpoint.architecture != "PaddleOCRTextModel"),),
        **fields,
    )


ERNIE4_5 = Family(("Ernie4_5ForCausalLM", "PaddleOCRTextModel"), ernie4_5_spec, Layout().tensors)


# ERNIE 4.5 with experts, whose softmax scores are corrected by learned numbers for the choice alone.
def ernie4_5_moe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not config.use_bias, "use_bias with experts")
    first, last, step = config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval
    moe = MoeSpec(
        num_experts=config.moe_num_experts,
        experts_per_token=config.moe_k,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=True, has_correction=True),
        layers=tuple((i + 1) % step == 0 and first <= i <= last for i in range(config.num_hidden_layers)),
        shared_intermediate_size=config.moe_num_shared_experts * config.moe_intermediate_size,
    )
    return ernie4_5_spec(config, checkpoint, moe=moe)


def ernie4_5_moe_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer; the corrections are a matrix of one row."""
    count = moe_of(spec).num_experts
    correction = Load(f"{prefix}mlp.moe_statics.e_score_correction_bias", (1, count))
    return ExpertNames().tensors(spec, prefix) | {"moe.router.correction": reshape(correction, count)}


ERNIE4_5_MOE = Family(("Ernie4_5_MoeForCausalLM",), ernie4_5_moe_spec, Layout(experts=ernie4_5_moe_experts).tensors)
