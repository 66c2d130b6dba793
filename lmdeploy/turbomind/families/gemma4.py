"""Gemma 4 (text): layers with a window and layers without have heads of other sizes; the last ones share keys."""

from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    decoder_spec,
    refuse_unless,
    windows_of,
)
from lmdeploy.turbomind.families.experts import has_experts, moe_of
from lmdeploy.turbomind.families.layer_inputs import layer_input_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import plain_rope, rope_of
from lmdeploy.turbomind.manifest import Expression, Load, reshape, rows_of
from lmdeploy.turbomind.spec import (
    AttentionSpec,
    BlockSpec,
    LayerInputSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    OutputSpec,
    RouterSpec,
)

KINDS = ("sliding_attention", "full_attention")
_NORMS = {
    "dense_output_norm": "post_feedforward_layernorm_1",
    "expert_norm": "pre_feedforward_layernorm_2",
    "expert_output_norm": "post_feedforward_layernorm_2",
}


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(config.use_bidirectional_attention != "all", "attention to what follows a token")
    kinds = [KINDS.index(kind) for kind in config.layer_types]
    sizes = [config.per_layer_config[kinds.index(kind) if kind in kinds else 0] for kind in range(len(KINDS))]
    sliding, full = (
        AttentionSpec(
            scale=1.0,
            windows=windows_of(config),
            num_kv_heads=own.num_key_value_heads,
            head_dim=own.head_dim,
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            qk_norm="head",
            norms_values=True,
            keys_are_values=config.attention_k_eq_v and KINDS[kind] == "full_attention",
            is_causal_in_images=KINDS[kind] == "full_attention",
        )
        for kind, own in enumerate(sizes)
    )
    shared = shared_keys(config)
    wide = 1 + bool(config.use_double_wide_mlp)
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=sizes[0].num_key_value_heads,
        head_dim=sizes[0].head_dim,
        norm=NormSpec(config.rms_norm_eps),
        mlp=MlpSpec(
            activation_of(config.hidden_activation),
            sizes=tuple(config.intermediate_size * (wide if source >= 0 else 1) for source in shared),
        ),
        moe=_moe(config) if config.enable_moe_block else None,
        attention=sliding,
        attentions=(full,),
        layer_attentions=tuple(kinds),
        layer_keys=tuple(shared),
        ropes=tuple(_rope(config, kind, own.head_dim) for kind, own in zip(KINDS, sizes, strict=True)),
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
    own = config.layer_types[:first]
    if missing := set(config.layer_types[first:]) - set(own):
        raise ValueError(f"num_kv_shared_layers {config.num_kv_shared_layers} leaves no layer of type {missing.pop()}")
    return [-1 if layer < first else first - 1 - own[::-1].index(kind) for layer, kind in enumerate(config.layer_types)]


def _layer_input(config: Any) -> LayerInputSpec | None:
    size = config.hidden_size_per_layer_input
    if not size:
        return None
    rows = getattr(config, "vocab_size_per_layer_input", config.vocab_size)
    return LayerInputSpec(size, image_token=config.pad_token_id or 0, vocab_size=rows)


def _rope(config: Any, kind: str, head_dim: int) -> Any:
    parameters = config.rope_parameters[kind]
    if parameters["rope_type"] == "default":
        return plain_rope(float(parameters["rope_theta"]), head_dim)
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
    moe, hidden = moe_of(spec), spec.hidden_size
    count, size = moe.num_experts, moe.intermediate_size
    gate_up = Load(prefix + "experts.gate_up_proj", (count, 2 * size, hidden))
    down = Load(prefix + "experts.down_proj", (count, hidden, size))
    engine: dict[str, Expression] = {
        "moe.router.weight": Load(prefix + "router.proj.weight", (count, hidden)),
        "moe.router_norm.weight": Load(prefix + "router.scale", (hidden,)),
        "moe.router.scales": Load(prefix + "router.per_expert_scale", (count,)),
    }
    for e in range(count):
        engine[f"moe.experts.{e}.gate_up.weight"] = reshape(rows_of(gate_up, e, e + 1), 2 * size, hidden)
        engine[f"moe.experts.{e}.down.weight"] = reshape(rows_of(down, e, e + 1), hidden, size)
    return engine


_LAYOUT = Layout(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
    experts=_experts,
)


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    engine = _LAYOUT.tensors(spec)
    for i in range(spec.num_layers):
        prefix = _LAYOUT.layer.format(i)
        engine[f"layers.{i}.scale"] = Load(prefix + "layer_scalar", (1,))
        for name, source in _NORMS.items() if has_experts(spec, i) else ():
            engine[f"layers.{i}.{name}.weight"] = Load(f"{prefix}{source}.weight", (spec.hidden_size,))
    return engine | layer_input_tensors(spec, _LAYOUT)


FAMILY = Family(("Gemma4ForCausalLM",), spec, tensors)
