"""Gemma 3n (text): several residual streams, per-layer embeddings, sparse activations, and shared keys and values."""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    decoder_spec,
    refuse_unless,
    windows_of,
)
from lmdeploy.turbomind.families.gemma4 import KINDS, shared_keys
from lmdeploy.turbomind.families.layer_inputs import layer_input_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import (
    AttentionSpec,
    BlockSpec,
    LayerInputSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    OutputSpec,
    StreamsSpec,
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(config.altup_correct_scale, "streams whose output has no factors (altup_correct_scale)")
    sparsity = config.activation_sparsity_pattern
    refuse_unless(all(share == 0 or 0.5 < share < 1 for share in sparsity), "an activation sparsity of half or less")
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=max(config.intermediate_size),
        norm=NormSpec(config.rms_norm_eps),
        mlp=MlpSpec(
            activation_of(config.hidden_activation),
            sizes=tuple(config.intermediate_size),
            cuts=tuple(NormalDist().inv_cdf(share) if share else 0.0 for share in sparsity),
        ),
        attention=AttentionSpec(
            scale=1.0,
            windows=windows_of(config),
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            qk_norm="head",
            norms_values=True,
        ),
        layer_keys=tuple(shared_keys(config)),
        ropes=tuple(rope_of(config, kind) for kind in KINDS),
        layer_ropes=tuple(KINDS.index(kind) for kind in config.layer_types),
        block=BlockSpec(has_output_norms=True),
        layer_input=LayerInputSpec(
            config.hidden_size_per_layer_input,
            image_token=config.pad_token_id or 0,
            vocab_size=config.vocab_size_per_layer_input,
        ),
        streams=StreamsSpec(config.altup_num_inputs, active=config.altup_active_idx, branch_rank=config.laurel_rank),
        embedding_scale=config.hidden_size**0.5,
        output=OutputSpec(softcap=config.final_logit_softcapping or 0.0),
    )


_LAYOUT = Layout(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)


def _streams(spec: ModelSpec, streams: StreamsSpec) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield name, name in the checkpoint and shape of the tensors that streams add to a layer."""
    count, hidden, rank = streams.count, spec.hidden_size, streams.branch_rank
    yield "router_norm.weight", "altup.router_norm.weight", (hidden,)
    yield "router.weight", "altup.modality_router.weight", (count, hidden)
    yield "predict.weight", "altup.prediction_coefs.weight", (count**2, count)
    yield "correct.weight", "altup.correction_coefs.weight", (count, count)
    yield "output_factors", "altup.correct_output_scale", (hidden,)
    yield "branch_down.weight", "laurel.linear_left.weight", (rank, hidden)
    yield "branch_up.weight", "laurel.linear_right.weight", (hidden, rank)
    yield "branch_norm.weight", "laurel.post_laurel_norm.weight", (hidden,)


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    assert spec.streams is not None
    engine = _LAYOUT.tensors(spec) | layer_input_tensors(spec, _LAYOUT)
    square = (spec.hidden_size, spec.hidden_size)
    for i in range(spec.streams.count - 1):
        engine[f"streams.make.{i}.weight"] = Load(f"model.altup_projections.{i}.weight", square)
        engine[f"streams.read.{i}.weight"] = Load(f"model.altup_unembed_projections.{i}.weight", square)
    for i in range(spec.num_layers):
        prefix = _LAYOUT.layer.format(i)
        for name, source, shape in _streams(spec, spec.streams):
            engine[f"layers.{i}.streams.{name}"] = Load(prefix + source, shape)
    return engine


FAMILY = Family(
    ("Gemma3nForCausalLM",),
    spec,
    tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
)
