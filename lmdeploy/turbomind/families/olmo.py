"""OLMo 1 to 3, OLMoE, FlexOlmo and OLMo-Hybrid."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.gated_delta import gated_delta_fields, recurrence_of
from lmdeploy.turbomind.families.layout import Layout, without_norm_weights
from lmdeploy.turbomind.families.rope import rope_of, ropes_by_kind
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec, MoeSpec, NormSpec, RouterSpec


# OLMo 1: LayerNorm without weights, and queries, keys and values within a bound.
def olmo_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    bias = config.attention_bias
    attention = attention_spec(config, qkv_bias=bias, o_bias=bias, qkv_clip=config.clip_qkv or 0.0)
    return decoder_spec(config, checkpoint, attention=attention, norm=NormSpec(1e-5, kind="layer"))


OLMO = Family(("OlmoForCausalLM",), olmo_spec, lambda spec: without_norm_weights(Layout().tensors(spec)))


# OLMo 2 and 3: norms after attention and MLP alone, and over all queries and all keys; OLMo 3 has windows in some.
def olmo2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; OLMo 3 scales the rotation of layers without a window alone."""
    bias = config.attention_bias
    fields: dict[str, Any] = {}
    if checkpoint.architecture == "Olmo3ForCausalLM":
        fields = ropes_by_kind(config)
    return decoder_spec(
        config,
        checkpoint,
        block=BlockSpec(has_input_norms=False, has_output_norms=True),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="projection"),
        **fields,
    )


OLMO2_LAYOUT = Layout(attention_output_norm="post_attention_layernorm", mlp_output_norm="post_feedforward_layernorm")
OLMO2 = Family(("Olmo2ForCausalLM", "Olmo3ForCausalLM"), olmo2_spec, OLMO2_LAYOUT.tensors)


# OLMoE: experts in every layer, and norms over all queries and over all keys of a token.
def olmoe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not config.clip_qkv, f"clip_qkv {config.clip_qkv} after norms of queries and keys")
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


OLMOE = Family(("OlmoeForCausalLM",), olmoe_spec, Layout().tensors)


# FlexOlmo: OLMoE with OLMo 2's norms after attention and MLP.
def flex_olmo_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    config.clip_qkv = None
    block = BlockSpec(has_input_norms=False, has_output_norms=True)
    return dataclasses.replace(olmoe_spec(config, checkpoint), block=block)


FLEX_OLMO = Family(("FlexOlmoForCausalLM",), flex_olmo_spec, OLMO2_LAYOUT.tensors)


# OLMo Hybrid: OLMo 3's attention in some layers, gated delta networks with norms in front in the others.
_NORM_EPS = 1e-5  # of what a gated delta network gives, whatever the config says of the others


def olmo_hybrid_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec. Published checkpoints do not rotate: they have no base of frequencies."""
    bias = config.attention_bias
    fields = gated_delta_fields(config)
    write_scale = 2.0 if config.linear_allow_neg_eigval else 1.0
    fields["recurrence"] = dataclasses.replace(fields["recurrence"], norm_eps=_NORM_EPS, write_scale=write_scale)
    rotates = (config.rope_parameters or {}).get("rope_theta") is not None
    return decoder_spec(
        config,
        checkpoint,
        block=BlockSpec(has_input_norms=False, has_output_norms=True),
        recurrence_block=BlockSpec(),
        attention=attention_spec(config, windows=(), qkv_bias=bias, o_bias=bias, qk_norm="projection"),
        ropes=(rope_of(config),) if rotates else (),
        **fields,
    )


def recurrence(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a gated delta network, which has a matrix for each part."""
    mixer, hidden = recurrence_of(spec), spec.hidden_size
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_heads * mixer.value_dim
    prefix += "linear_attn."

    def joined(**rows: int) -> Expression:
        return concat(*(Load(f"{prefix}{name}_proj.weight", (count, hidden)) for name, count in rows.items()))

    convolutions = [
        reshape(Load(f"{prefix}{name}_conv1d.weight", (count, 1, mixer.conv_kernel)), count, mixer.conv_kernel)
        for name, count in (("q", keys), ("k", keys), ("v", values))
    ]
    return {
        "recurrence.in.weight": joined(q=keys, k=keys, v=values, g=values),
        "recurrence.gates.weight": joined(a=mixer.num_heads, b=mixer.num_heads),
        "recurrence.conv": concat(*convolutions),
        "recurrence.a_log": Load(f"{prefix}A_log", (mixer.num_heads,)),
        "recurrence.dt_bias": Load(f"{prefix}dt_bias", (mixer.num_heads,)),
        "recurrence.norm.weight": Load(f"{prefix}o_norm.weight", (mixer.value_dim,)),
        "recurrence.out.weight": Load(f"{prefix}o_proj.weight", (hidden, values)),
    }


OLMO_HYBRID_LAYOUT = Layout(
    attention_norm="attention_layer_norm",
    mlp_norm="feedforward_layer_norm",
    attention_output_norm="post_attention_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
    recurrence=recurrence,
)
OLMO_HYBRID = Family(("OlmoHybridForCausalLM",), olmo_hybrid_spec, OLMO_HYBRID_LAYOUT.tensors)
