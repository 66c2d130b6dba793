"""OLMo Hybrid: OLMo 3's attention in some layers, gated delta networks with norms in front in the others."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.gated_delta import gated_delta_fields, recurrence_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec

_NORM_EPS = 1e-5  # of what a gated delta network gives, whatever the config says of the others


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
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
    own, hidden = recurrence_of(spec), spec.hidden_size
    keys, values = own.num_key_heads * own.key_dim, own.num_heads * own.value_dim
    prefix += "linear_attn."

    def joined(**rows: int) -> Expression:
        return concat(*(Load(f"{prefix}{name}_proj.weight", (count, hidden)) for name, count in rows.items()))

    convolutions = [
        reshape(Load(f"{prefix}{name}_conv1d.weight", (count, 1, own.conv_kernel)), count, own.conv_kernel)
        for name, count in (("q", keys), ("k", keys), ("v", values))
    ]
    return {
        "recurrence.in.weight": joined(q=keys, k=keys, v=values, g=values),
        "recurrence.gates.weight": joined(a=own.num_heads, b=own.num_heads),
        "recurrence.conv": concat(*convolutions),
        "recurrence.a_log": Load(f"{prefix}A_log", (own.num_heads,)),
        "recurrence.dt_bias": Load(f"{prefix}dt_bias", (own.num_heads,)),
        "recurrence.norm.weight": Load(f"{prefix}o_norm.weight", (own.value_dim,)),
        "recurrence.out.weight": Load(f"{prefix}o_proj.weight", (hidden, values)),
    }


LAYOUT = Layout(
    attention_norm="attention_layer_norm",
    mlp_norm="feedforward_layer_norm",
    attention_output_norm="post_attention_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
    recurrence=recurrence,
)
FAMILY = Family(("OlmoHybridForCausalLM",), spec, LAYOUT.tensors)
