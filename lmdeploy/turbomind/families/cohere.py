"""Command R (Cohere), R7B and A (Cohere2), North with experts, and the text part of North Vision."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    reject_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormSpec, OutputSpec, RouterSpec


# Parallel halves that share a LayerNorm without bias, scaled logits.
def cohere_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    bias = config.attention_bias
    # Cohere2 rotates in layers with a window alone.
    kinds = getattr(config, "layer_types", None) or ()
    defaults: dict[str, Any] = {
        "norm": NormSpec(config.layer_norm_eps, kind="layer"),
        "layer_ropes": tuple(0 if kind == "sliding_attention" else -1 for kind in kinds),
    }
    if "ropes" not in fields:
        defaults["ropes"] = (rope_of(config, is_interleaved=True),)
    return decoder_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act)),
        block=BlockSpec(is_parallel=True, shares_norm=True),
        attention=attention_spec(
            config,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm="each_head" if getattr(config, "use_qk_norm", False) else "none",
        ),
        output=OutputSpec(scale=config.logit_scale),
        **(defaults | fields),
    )


COHERE = Family(("CohereForCausalLM", "Cohere2ForCausalLM"), cohere_spec, Layout().tensors)


# The text part of North Vision (Compass): Cohere2 whose kinds of layers each have a rotation of their own, or none.
def compass_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    config.logit_scale = config.logit_scale or 1.0
    parameters = config.rope_parameters
    kinds = [kind for kind in dict.fromkeys(config.layer_types) if parameters.get(kind)]
    return cohere_spec(
        config,
        checkpoint,
        ropes=tuple(rope_of(config, kind) for kind in kinds),
        layer_ropes=tuple(kinds.index(kind) if kind in kinds else -1 for kind in config.layer_types),
    )


COMPASS = Family(("CohereCompassForCausalLM",), compass_spec, Layout().tensors)


# Cohere2 with experts: the first layers may be dense, and rotate if all of them attend to everything.
def cohere2_moe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    score, shared = config.expert_selection_fn, config.num_shared_experts
    reject_unless(score in {"softmax", "sigmoid"}, f"expert_selection_fn {score!r}")
    is_averaged = shared > 0 and config.shared_expert_combination_strategy == "average"
    reject_unless(not (is_averaged and config.attention_bias), "attention_bias with averaged experts")
    is_dense = [kind == "dense" for kind in config.mlp_layer_types]
    # The published code takes the softmax of what is chosen, which is that of all, normalized.
    moe = MoeSpec(
        config.num_experts,
        config.num_experts_per_tok,
        config.intermediate_size,
        RouterSpec(score, normalizes=score == "softmax" or config.norm_topk_prob),
        layers=tuple(not dense for dense in is_dense),
        shared_intermediate_size=shared * config.intermediate_size,
    )
    all_rotate = config.prefix_dense_sliding_window_pattern == 1
    rotates = [kind == "sliding_attention" for kind in config.layer_types]
    eps = config.rms_norm_eps
    whole = cohere_spec(
        config,
        checkpoint,
        norm=NormSpec(config.layer_norm_eps, kind="layer") if eps is None else NormSpec(eps),
        intermediate_size=config.prefix_dense_intermediate_size or config.intermediate_size,
        layer_ropes=tuple(
            0 if rope or (dense and all_rotate) else -1 for rope, dense in zip(rotates, is_dense, strict=True)
        ),
        moe=moe,
    )
    if not is_averaged:
        return whole
    # Half of the sum of routed and shared experts: half of everything, and twice as much of the rest.
    return dataclasses.replace(
        whole,
        block=dataclasses.replace(whole.block, residual_scale=0.5),
        attention=dataclasses.replace(whole.attention, value_scale=2.0),
        mlp=dataclasses.replace(whole.mlp, up_scale=2.0),
    )


COHERE2_MOE = Family(("Cohere2MoeForCausalLM",), cohere2_moe_spec, Layout().tensors)
