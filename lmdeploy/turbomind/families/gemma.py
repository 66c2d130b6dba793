"""Gemma 1 to 4 and Gemma 3n."""

import dataclasses
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    reject_unless,
    windows_of,
)
from lmdeploy.turbomind.families.experts import has_experts, moe_of, stacked_experts
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope, rope_of, ropes_by_kind
from lmdeploy.turbomind.manifest import Expression, Load, concat, rows_of
from lmdeploy.turbomind.spec import (
    AttentionSpec,
    BlockSpec,
    EncoderSpec,
    LayerInputSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    OutputSpec,
    RouterSpec,
    StreamsSpec,
)

# Gemma 1, 2, 3 (text), EmbeddingGemma: norm weights start at 0, embeddings are scaled, heads have their own size.
_VAULT = "VaultGemmaForCausalLM"  # Gemma 2 without norms after attention and MLP
_GEMMA_LAYOUT = Layout()
LATER_LAYOUT = Layout(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)


def gemma_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; a config names the features that its version of Gemma has."""
    version = {"GemmaForCausalLM": 1, "Gemma2ForCausalLM": 2, _VAULT: 2}.get(checkpoint.architecture, 3)
    bias = config.attention_bias
    attention = {"qkv_bias": bias, "o_bias": bias}
    fields: dict[str, Any] = {}
    if version >= 2:
        attention |= {"scale": config.query_pre_attn_scalar**-0.5, "softcap": config.attn_logit_softcapping or 0.0}
        fields |= {
            "block": BlockSpec(has_output_norms=checkpoint.architecture != _VAULT),
            "output": OutputSpec(softcap=config.final_logit_softcapping or 0.0),
        }
    if version == 3:
        attention["qk_norm"] = "head"
        fields |= ropes_by_kind(config)
    if getattr(config, "use_bidirectional_attention", None):  # EmbeddingGemma
        fields |= {"encoder": EncoderSpec(), "tied_embeddings": True}
    # Old Gemma configs say gelu and mean its approximation.
    activation = "gelu_tanh" if version == 1 else activation_of(config.hidden_activation)
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.rms_norm_eps, offset=1.0),
        mlp=MlpSpec(activation),
        attention=attention_spec(config, **attention),
        embedding_scale=config.hidden_size**0.5,
        **fields,
    )


def gemma_tensors(spec: ModelSpec) -> dict[str, Expression]:
    has_later_names = spec.block.has_output_norms or spec.architecture == _VAULT
    return (LATER_LAYOUT if has_later_names else _GEMMA_LAYOUT).tensors(spec)


GEMMA = Family(
    ("GemmaForCausalLM", "Gemma2ForCausalLM", _VAULT, "Gemma3ForCausalLM", "Gemma3TextModel"), gemma_spec, gemma_tensors
)


# Where Gemma keeps the further inputs of its layers (per-layer embeddings).
def layer_input_tensors(spec: ModelSpec, layout: Layout) -> dict[str, Expression]:
    """Return the engine tensors that make and add the layers' inputs; none where the spec has no inputs."""
    if spec.layer_input is None:
        return {}
    size, hidden = spec.layer_input.size, spec.hidden_size
    width = spec.num_layers * size
    rows = spec.layer_input.vocab_size or spec.vocab_size
    table: Expression = Load("model.embed_tokens_per_layer.weight", (rows, width))
    if rows > spec.vocab_size:
        table = rows_of(table, 0, spec.vocab_size)
    elif rows < spec.vocab_size:
        table = concat(table, *(rows_of(table, 0, 1),) * (spec.vocab_size - rows))
    engine: dict[str, Expression] = {
        "layer_inputs.table": table,
        "layer_inputs.project.weight": Load("model.per_layer_model_projection.weight", (width, hidden)),
        "layer_inputs.norm.weight": Load("model.per_layer_projection_norm.weight", (size,)),
    }
    for i in range(spec.num_layers):
        prefix = layout.layer.format(i)
        engine |= {
            f"layers.{i}.input.gate.weight": Load(prefix + "per_layer_input_gate.weight", (size, hidden)),
            f"layers.{i}.input.project.weight": Load(prefix + "per_layer_projection.weight", (hidden, size)),
            f"layers.{i}.input.norm.weight": Load(prefix + "post_per_layer_input_norm.weight", (hidden,)),
        }
    return engine


# Gemma 4 (text): layers with a window and layers without have heads of other sizes; the last ones share keys.
KINDS = ("sliding_attention", "full_attention")
_NORMS = {
    "dense_output_norm": "post_feedforward_layernorm_1",
    "expert_norm": "pre_feedforward_layernorm_2",
    "expert_output_norm": "post_feedforward_layernorm_2",
}


def gemma4_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(config.use_bidirectional_attention != "all", "attention to what follows a token")
    kinds = [KINDS.index(kind) for kind in config.layer_types]
    sizes = [config.per_layer_config[kinds.index(kind) if kind in kinds else 0] for kind in range(len(KINDS))]
    sliding, full = (
        AttentionSpec(
            scale=1.0,
            windows=windows_of(config),
            num_kv_heads=size.num_key_value_heads,
            head_dim=size.head_dim,
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            qk_norm="head",
            norms_values=True,
            keys_are_values=config.attention_k_eq_v and KINDS[kind] == "full_attention",
            is_causal_in_images=KINDS[kind] == "full_attention",
        )
        for kind, size in enumerate(sizes)
    )
    shared = shared_keys(config)
    factor = 1 + bool(config.use_double_wide_mlp)
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=sizes[0].num_key_value_heads,
        head_dim=sizes[0].head_dim,
        norm=NormSpec(config.rms_norm_eps),
        mlp=MlpSpec(
            activation_of(config.hidden_activation),
            sizes=tuple(config.intermediate_size * (factor if source >= 0 else 1) for source in shared),
        ),
        moe=_moe(config) if getattr(config, "enable_moe_block", False) else None,
        attention=sliding,
        attentions=(full,),
        layer_attentions=tuple(kinds),
        layer_keys=tuple(shared),
        ropes=tuple(_rope(config, kind, size.head_dim) for kind, size in zip(KINDS, sizes, strict=True)),
        layer_ropes=tuple(kinds),
        block=BlockSpec(has_output_norms=True, has_layer_scale=True),
        layer_input=_layer_input(config),
        embedding_scale=config.hidden_size**0.5,
        output=OutputSpec(softcap=config.final_logit_softcapping or 0.0),
    )


def shared_keys(config: Any) -> list[int]:
    """Return for each layer whose keys and values it attends to: of the last ones, the last of their type that has any.

    -1: its own.
    """
    first = config.num_hidden_layers - config.num_kv_shared_layers
    base = config.layer_types[:first]
    if missing := set(config.layer_types[first:]) - set(base):
        raise ValueError(f"num_kv_shared_layers {config.num_kv_shared_layers} leaves no layer of type {missing.pop()}")
    return [-1 if i < first else first - 1 - base[::-1].index(kind) for i, kind in enumerate(config.layer_types)]


def _layer_input(config: Any) -> LayerInputSpec | None:
    size = getattr(config, "hidden_size_per_layer_input", 0)
    if not size:
        return None
    rows = getattr(config, "vocab_size_per_layer_input", config.vocab_size)
    return LayerInputSpec(size, image_token=config.pad_token_id or 0, vocab_size=rows)


def _rope(config: Any, kind: str, head_dim: int) -> Any:
    parameters = config.rope_parameters[kind]
    if parameters["rope_type"] == "default":
        return default_rope(float(parameters["rope_theta"]), head_dim)
    return rope_of(config, kind)


def _moe(config: Any) -> MoeSpec:
    return MoeSpec(
        num_experts=config.num_experts,
        experts_per_token=config.top_k_experts,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=True, has_input_norm=True, has_expert_scale=True),
        is_alongside_mlp=True,
    )


def _experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer, all of which stand in one tensor."""
    count, hidden = moe_of(spec).num_experts, spec.hidden_size
    engine: dict[str, Expression] = {
        "moe.router.weight": Load(prefix + "router.proj.weight", (count, hidden)),
        "moe.router_norm.weight": Load(prefix + "router.scale", (hidden,)),
        "moe.router.scales": Load(prefix + "router.per_expert_scale", (count,)),
    }
    return engine | stacked_experts(spec, f"{prefix}experts.gate_up_proj", f"{prefix}experts.down_proj")


_GEMMA4_LAYOUT = dataclasses.replace(LATER_LAYOUT, experts=_experts)


def gemma4_tensors(spec: ModelSpec) -> dict[str, Expression]:
    engine = _GEMMA4_LAYOUT.tensors(spec)
    for i in range(spec.num_layers):
        prefix = _GEMMA4_LAYOUT.layer.format(i)
        engine[f"layers.{i}.scale"] = Load(prefix + "layer_scalar", (1,))
        for name, source in _NORMS.items() if has_experts(spec, i) else ():
            engine[f"layers.{i}.{name}.weight"] = Load(f"{prefix}{source}.weight", (spec.hidden_size,))
    return engine | layer_input_tensors(spec, _GEMMA4_LAYOUT)


GEMMA4 = Family(("Gemma4ForCausalLM", "Gemma4UnifiedForCausalLM"), gemma4_spec, gemma4_tensors)


# Gemma 3n (text): several residual streams, per-layer embeddings, sparse activations, and shared keys and values.
def gemma3n_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(config.altup_correct_scale, "streams whose output has no factors (altup_correct_scale)")
    sparsity = config.activation_sparsity_pattern
    reject_unless(all(share == 0 or 0.5 < share < 1 for share in sparsity), "an activation sparsity of half or less")
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


def gemma3n_tensors(spec: ModelSpec) -> dict[str, Expression]:
    assert spec.streams is not None
    engine = LATER_LAYOUT.tensors(spec) | layer_input_tensors(spec, LATER_LAYOUT)
    square = (spec.hidden_size, spec.hidden_size)
    for i in range(spec.streams.count - 1):
        engine[f"streams.make.{i}.weight"] = Load(f"model.altup_projections.{i}.weight", square)
        engine[f"streams.read.{i}.weight"] = Load(f"model.altup_unembed_projections.{i}.weight", square)
    for i in range(spec.num_layers):
        prefix = LATER_LAYOUT.layer.format(i)
        for name, source, shape in _streams(spec, spec.streams):
            engine[f"layers.{i}.streams.{name}"] = Load(prefix + source, shape)
    return engine


GEMMA3N = Family(
    ("Gemma3nForCausalLM",),
    gemma3n_spec,
    gemma3n_tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
)
