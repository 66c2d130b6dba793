"""LFM2, dense and with experts, and LFM3."""

import dataclasses
import math
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.gated_delta import recurrence_of
from lmdeploy.turbomind.families.layout import Layout, linear_tensors
from lmdeploy.turbomind.families.rope import ropes_by_kind
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormSpec, RecurrenceSpec, RouterSpec

# LFM2: gated short convolutions, and attention with normed queries and keys in some layers.
MIXERS = {"conv": "recurrence", "full_attention": "attention", "sliding_attention": "attention"}
LFM2_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_LARGEST_HEAD = 8  # of channels, which nothing but the division among ranks puts together


def hybrid_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    mixers = tuple(MIXERS.get(kind, kind) for kind in config.layer_types)
    head = math.gcd(config.hidden_size, _LARGEST_HEAD)
    heads = config.hidden_size // head
    convolution = RecurrenceSpec(
        "short_convolution",
        num_heads=heads,
        num_key_heads=heads,
        key_dim=1,
        value_dim=head,
        conv_kernel=config.conv_L_cache,
        conv_bias=config.conv_bias,
        bias=config.conv_bias,
        norm="none",
        gate="linear",
    )
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.norm_eps),
        mlp=MlpSpec("silu"),
        layer_mixers=mixers,
        recurrence=convolution if "recurrence" in mixers else None,
        **({"attention": attention_spec(config, windows=(), qk_norm="head")} | fields),
    )


def lfm2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec. Unless a config says otherwise, its MLPs are narrower than their size in it."""
    size = config.intermediate_size
    if config.block_auto_adjust_ff_dim:
        size = int(2 * size / 3)
        if config.block_ffn_dim_multiplier is not None:
            multiple = config.block_multiple_of
            size = -(-int(config.block_ffn_dim_multiplier * size) // multiple) * multiple
    return hybrid_spec(config, checkpoint, intermediate_size=size)


def convolution_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a convolution; a checkpoint has rows for its gate, the later gate, and values."""
    recurrence, hidden = recurrence_of(spec), spec.hidden_size

    def values_first(whole: Expression) -> Expression:
        return concat(rows_of(whole, 2 * hidden, 3 * hidden), rows_of(whole, 0, 2 * hidden))

    prefix += "conv."
    engine = linear_tensors("recurrence.in", {f"{prefix}in_proj": 3 * hidden}, hidden, recurrence.bias, values_first)
    engine["recurrence.conv"] = reshape(
        Load(f"{prefix}conv.weight", (hidden, 1, recurrence.conv_kernel)), hidden, recurrence.conv_kernel
    )
    if recurrence.conv_bias:
        engine["recurrence.conv_bias"] = Load(f"{prefix}conv.bias", (hidden,))
    return engine | linear_tensors("recurrence.out", {f"{prefix}out_proj": hidden}, hidden, recurrence.bias)


LFM2_LAYOUT = Layout(
    final_norm="model.embedding_norm",
    attention_norm="operator_norm",
    mlp_norm="ffn_norm",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    o="self_attn.out_proj",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    experts=ExpertNames(
        router="feed_forward.gate",
        correction="feed_forward.expert_bias",
        gate="feed_forward.experts.{}.w1",
        up="feed_forward.experts.{}.w3",
        down="feed_forward.experts.{}.w2",
    ).tensors,
    recurrence=convolution_tensors,
)
LFM2 = Family(("Lfm2ForCausalLM",), lfm2_spec, LFM2_LAYOUT.tensors, sizes=LFM2_SIZES)


# LFM2 with experts in all but the first layers.
def lfm2_moe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    router = RouterSpec(
        score="sigmoid",
        normalizes=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        has_correction=config.use_expert_bias,
    )
    layers = tuple(layer >= config.num_dense_layers for layer in range(config.num_hidden_layers))
    moe = MoeSpec(config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size, router, layers)
    return hybrid_spec(config, checkpoint, moe=moe)


LFM2_MOE = Family(
    ("Lfm2MoeForCausalLM",),
    lfm2_moe_spec,
    LFM2_LAYOUT.tensors,
    sizes=(*LFM2_SIZES, "intermediate_size", "moe_intermediate_size"),
)


# LFM3: windows in some layers, gated attention, norms after both halves; the gate is one number a head.
def lfm3_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not config.attention_bias, "attention_bias with gated attention")
    return hybrid_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qk_norm="head", has_output_gate=config.use_attention_gate, gates_heads=True),
        block=BlockSpec(has_output_norms=config.use_sandwich_norm),
        **ropes_by_kind(config),
    )


LFM3_LAYOUT = dataclasses.replace(
    LFM2_LAYOUT,
    attention_output_norm="post_operator_norm",
    mlp_output_norm="post_ffn_norm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    o="self_attn.o_proj",
    output_gate="self_attn.gate_proj",
)
LFM3 = Family(("Lfm3ForCausalLM",), lfm3_spec, LFM3_LAYOUT.tensors)
