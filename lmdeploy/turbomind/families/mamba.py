"""Mamba-1 and Mamba-2: pure models, mixers of hybrid families, and Jamba."""

import dataclasses
import math
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.gated_delta import MIXERS, recurrence_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of
from lmdeploy.turbomind.spec import AttentionSpec, ModelSpec, MoeSpec, NormSpec, RecurrenceSpec, RouterSpec


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
    mixer, hidden = recurrence_of(spec), spec.hidden_size
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_heads * mixer.value_dim
    channels = values + 2 * keys

    def channels_of(whole: Expression, first: int) -> list[Expression]:
        ends = [first, first + values, first + values + keys, first + channels]
        return [rows_of(whole, ends[i], ends[i + 1]) for i in (2, 1, 0)]

    def inputs(whole: Expression) -> Expression:
        steps = rows_of(whole, values + channels, whole.shape[0])
        return concat(*channels_of(whole, values), rows_of(whole, 0, values), steps)

    rows = values + channels + mixer.num_heads
    convolution = reshape(Load(f"{prefix}conv1d.weight", (channels, 1, mixer.conv_kernel)), channels, mixer.conv_kernel)
    engine = {
        "recurrence.in.weight": inputs(Load(f"{prefix}in_proj.weight", (rows, hidden))),
        "recurrence.conv": concat(*channels_of(convolution, 0)),
        "recurrence.a_log": Load(f"{prefix}A_log", (mixer.num_heads,)),
        "recurrence.dt_bias": Load(f"{prefix}dt_bias", (mixer.num_heads,)),
        "recurrence.skip": Load(f"{prefix}D", (mixer.num_heads,)),
        "recurrence.out.weight": Load(f"{prefix}out_proj.weight", (hidden, values)),
    }
    if mixer.norm != "none":
        engine["recurrence.norm.weight"] = Load(f"{prefix}norm.weight", (values,))
    if mixer.conv_bias:
        engine["recurrence.conv_bias"] = concat(*channels_of(Load(f"{prefix}conv1d.bias", (channels,)), 0))
    if mixer.bias:
        engine["recurrence.in.bias"] = inputs(Load(f"{prefix}in_proj.bias", (rows,)))
        engine["recurrence.out.bias"] = Load(f"{prefix}out_proj.bias", (hidden,))
    return engine


# Mamba-2: layers that are a recurrence alone.
MAX_LEN = 1 << 20  # tokens of a sequence: nothing in the model depends on it


def recurrent_spec(config: Any, checkpoint: Checkpoint, recurrence: RecurrenceSpec) -> ModelSpec:
    """Return the spec. No layer has the heads and the MLP that must have a size."""
    config.num_attention_heads, config.head_dim, config.max_position_embeddings = 1, 2, MAX_LEN
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


def mamba2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
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
    return recurrent_spec(config, checkpoint, recurrence)


MAMBA2_LAYOUT = Layout(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    attention_norm="norm",
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mixer."),
)
MAMBA_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers")
MAMBA2 = Family(("Mamba2ForCausalLM",), mamba2_spec, MAMBA2_LAYOUT.tensors, sizes=MAMBA_SIZES)


# Mamba-1, the selective scan: one head, whose channels each have their own decays.
def scan_spec(config: Any, values: int, **fields: Any) -> RecurrenceSpec:
    """Return the recurrence of ``values`` channels."""
    reject_unless(config.hidden_act in {"silu", "swish"}, f"a convolution followed by {config.hidden_act}")
    return RecurrenceSpec("mamba", num_heads=1, num_key_heads=1, value_dim=values, **fields)


def scan_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer whose tensors begin with ``prefix``."""
    mixer, hidden = recurrence_of(spec), spec.hidden_size
    values, rank, size = mixer.value_dim, mixer.gate_rank, mixer.key_dim
    inputs = Load(f"{prefix}x_proj.weight", (rank + 2 * size, values))
    engine: dict[str, Expression] = {
        "recurrence.in.weight": Load(f"{prefix}in_proj.weight", (2 * values, hidden)),
        "recurrence.conv": reshape(
            Load(f"{prefix}conv1d.weight", (values, 1, mixer.conv_kernel)), values, mixer.conv_kernel
        ),
        "recurrence.step_down.weight": rows_of(inputs, 0, rank),
        "recurrence.keys_queries.weight": rows_of(inputs, rank, rank + 2 * size),
        "recurrence.step_up.weight": Load(f"{prefix}dt_proj.weight", (values, rank)),
        "recurrence.step_up.bias": Load(f"{prefix}dt_proj.bias", (values,)),
        "recurrence.a_log": Load(f"{prefix}A_log", (values, size)),
        "recurrence.skip": Load(f"{prefix}D", (values,)),
        "recurrence.out.weight": Load(f"{prefix}out_proj.weight", (hidden, values)),
    }
    if mixer.norm == "inputs":
        sizes = {"dt": rank, "b": size, "c": size}
        norms = (Load(f"{prefix}{name}_layernorm.weight", (length,)) for name, length in sizes.items())
        engine["recurrence.norm.weight"] = concat(*norms)
    if mixer.conv_bias:
        engine["recurrence.conv_bias"] = Load(f"{prefix}conv1d.bias", (values,))
    if mixer.bias:
        engine["recurrence.in.bias"] = Load(f"{prefix}in_proj.bias", (2 * values,))
        engine["recurrence.out.bias"] = Load(f"{prefix}out_proj.bias", (hidden,))
    return engine


def mamba1_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of Mamba, or of Falcon Mamba, which norms what steps, keys and queries come out of."""
    is_falcon = checkpoint.architecture == "FalconMambaForCausalLM"
    recurrence = scan_spec(
        config,
        config.intermediate_size,
        key_dim=config.state_size,
        gate_rank=config.time_step_rank,
        conv_kernel=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        norm="plain_inputs" if is_falcon else "none",
        norm_eps=config.mixer_rms_eps if is_falcon else 0.0,
    )
    return recurrent_spec(config, checkpoint, recurrence)


MAMBA_LAYOUT = dataclasses.replace(MAMBA2_LAYOUT, recurrence=lambda spec, prefix: scan_tensors(spec, prefix + "mixer."))
MAMBA = Family(("MambaForCausalLM", "FalconMambaForCausalLM"), mamba1_spec, MAMBA_LAYOUT.tensors, sizes=MAMBA_SIZES)


# Jamba: Mamba in most layers, attention without rotation in some, and experts in every other one.
def jamba_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    experts = tuple(count > 1 for count in config.layers_num_experts)
    moe = MoeSpec(
        config.num_experts, config.num_experts_per_tok, config.intermediate_size, RouterSpec(), layers=experts
    )
    mixers = tuple(MIXERS[kind] for kind in config.layer_types)
    recurrence = scan_spec(
        config,
        config.mamba_expand * config.hidden_size,
        key_dim=config.mamba_d_state,
        gate_rank=config.mamba_dt_rank,
        conv_kernel=config.mamba_d_conv,
        conv_bias=config.mamba_conv_bias,
        bias=config.mamba_proj_bias,
        norm="inputs",
    )
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, windows=()),
        ropes=(),
        moe=moe if any(experts) else None,
        layer_mixers=mixers,
        recurrence=recurrence if "recurrence" in mixers else None,
    )


JAMBA_LAYOUT = Layout(
    final_norm="model.final_layernorm",
    mlp_norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    experts=ExpertNames(
        router="feed_forward.router",
        gate="feed_forward.experts.{}.gate_proj",
        up="feed_forward.experts.{}.up_proj",
        down="feed_forward.experts.{}.down_proj",
    ).tensors,
    recurrence=lambda spec, prefix: scan_tensors(spec, prefix + "mamba."),
)
JAMBA = Family(("JambaForCausalLM",), jamba_spec, JAMBA_LAYOUT.tensors)
