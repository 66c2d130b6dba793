"""Mamba-2 mixers of hybrid families, and Mamba-2 itself."""

import math
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec, reject_unless
from lmdeploy.turbomind.families.gated_delta import recurrence_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of
from lmdeploy.turbomind.spec import AttentionSpec, ModelSpec, NormSpec, RecurrenceSpec


# Where checkpoints keep a layer of Mamba-2 (Granite 4, Falcon-H1, Nemotron-H, Mamba2), and its sizes.
def mamba_spec(config: Any, **fields: Any) -> RecurrenceSpec:
    """Return the recurrence of Mamba-2 with what ``fields`` do not give as Granite's configs name it."""
    reject_unless(config.hidden_act in {"silu", "swish"}, f"a convolution followed by {config.hidden_act}")
    if "num_heads" not in fields:
        fields |= {
            "num_heads": config.mamba_n_heads,
            "num_key_heads": config.mamba_n_groups,
            "key_dim": config.mamba_d_state,
            "value_dim": config.mamba_d_head,
            "conv_kernel": config.mamba_d_conv,
            "conv_bias": config.mamba_conv_bias,
            "bias": config.mamba_proj_bias,
        }
    shortest, longest = config.time_step_limit or (0.0, math.inf)
    bounds = {"min_step": float(shortest), "max_step": 0.0 if math.isinf(longest) else float(longest)}
    norm = {"norm": "groups", "norm_groups": fields["num_key_heads"], "norms_gated": True}
    return RecurrenceSpec("mamba2", **(bounds | norm | fields))


def mamba_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer whose tensors begin with ``prefix``.

    A checkpoint has rows for the gate, values (x), keys (B), queries (C) and steps, in this order.
    """
    own, hidden = recurrence_of(spec), spec.hidden_size
    keys, values = own.num_key_heads * own.key_dim, own.num_heads * own.value_dim
    channels = values + 2 * keys

    def channels_of(whole: Expression, first: int) -> list[Expression]:
        ends = [first, first + values, first + values + keys, first + channels]
        return [rows_of(whole, ends[i], ends[i + 1]) for i in (2, 1, 0)]

    def inputs(whole: Expression) -> Expression:
        steps = rows_of(whole, values + channels, whole.shape[0])
        return concat(*channels_of(whole, values), rows_of(whole, 0, values), steps)

    rows = values + channels + own.num_heads
    convolution = reshape(Load(f"{prefix}conv1d.weight", (channels, 1, own.conv_kernel)), channels, own.conv_kernel)
    engine = {
        "recurrence.in.weight": inputs(Load(f"{prefix}in_proj.weight", (rows, hidden))),
        "recurrence.conv": concat(*channels_of(convolution, 0)),
        "recurrence.a_log": Load(f"{prefix}A_log", (own.num_heads,)),
        "recurrence.dt_bias": Load(f"{prefix}dt_bias", (own.num_heads,)),
        "recurrence.skip": Load(f"{prefix}D", (own.num_heads,)),
        "recurrence.out.weight": Load(f"{prefix}out_proj.weight", (hidden, values)),
    }
    if own.norm != "none":
        engine["recurrence.norm.weight"] = Load(f"{prefix}norm.weight", (values,))
    if own.conv_bias:
        engine["recurrence.conv_bias"] = concat(*channels_of(Load(f"{prefix}conv1d.bias", (channels,)), 0))
    if own.bias:
        engine["recurrence.in.bias"] = inputs(Load(f"{prefix}in_proj.bias", (rows,)))
        engine["recurrence.out.bias"] = Load(f"{prefix}out_proj.bias", (hidden,))
    return engine


# Mamba-2: layers that are a recurrence alone.
MAX_LEN = 1 << 20  # tokens of a sequence: nothing in the model depends on it


def mamba2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec. No layer has the heads and the MLP that must have a size."""
    config.num_attention_heads, config.head_dim, config.max_position_embeddings = 1, 2, MAX_LEN
    recurrence = mamba_spec(
        config,
        num_heads=config.num_heads,
        num_key_heads=config.n_groups,
        key_dim=config.state_size,
        value_dim=config.hidden_size * config.expand // config.num_heads,
        conv_kernel=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
    )
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=1,
        intermediate_size=1,
        norm=NormSpec(config.layer_norm_epsilon),
        attention=AttentionSpec(1.0),
        ropes=(),
        layer_mixers=("recurrence",) * config.num_hidden_layers,
        layer_mlps=(False,) * config.num_hidden_layers,
        recurrence=recurrence,
    )


MAMBA2_LAYOUT = Layout(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    attention_norm="norm",
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mixer."),
)
MAMBA2 = Family(
    ("Mamba2ForCausalLM",), mamba2_spec, MAMBA2_LAYOUT.tensors, sizes=("vocab_size", "hidden_size", "num_hidden_layers")
)
