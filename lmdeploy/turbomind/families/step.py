"""Step 3.5 and 3.7: gated attention with more query heads in layers with a window, experts by a sigmoid router."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.deepseek import moe_spec
from lmdeploy.turbomind.families.experts import ExpertNames, expert_of, moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import ropes_by_kind
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import ModelSpec, NormSpec, RouterSpec


def config(raw: Mapping[str, Any]) -> Any:
    """Return the config of the text part; that of a text model names experts and dense layers as DeepSeek's does."""
    from transformers import Step3p7TextConfig

    fields = {name: value for name, value in raw.items() if name not in ("architectures", "auto_map", "model_type")}
    fields.setdefault("n_routed_experts", raw.get("num_experts", 288))
    if "first_k_dense_replace" in raw:
        fields["moe_layers_enum"] = list(range(raw["first_k_dense_replace"], raw["num_hidden_layers"]))
    return Step3p7TextConfig.from_dict(fields | {"per_layer_config": {}})  # else it has no ``num_attention_heads``


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not (config.attention_bias or config.mlp_bias), "attention_bias or mlp_bias")
    bounds = zip(config.mlp_layer_types, config.swiglu_limits_shared or (), strict=False)
    reject_unless(not any(limit and kind == "dense" for kind, limit in bounds), "swiglu_limits_shared of a dense MLP")
    gated = attention_spec(
        config, scale=config.query_pre_attn_scalar**-0.5, qk_norm="head", has_output_gate=True, gates_heads=True
    )
    router = RouterSpec(
        score="sigmoid",
        normalizes=getattr(config, "norm_expert_weight", True),
        scale=config.moe_router_scaling_factor,
        has_correction=getattr(config, "use_moe_router_bias", True),
    )
    moe = dataclasses.replace(
        moe_spec(config, router),
        shared_intermediate_size=config.share_expert_dim,
        activations=activations(config.swiglu_limits),
        shared_activations=activations(config.swiglu_limits_shared),
    )
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.rms_norm_eps, offset=1.0),
        attention=gated,
        attentions=(dataclasses.replace(gated, num_heads=config.num_sliding_attention_heads),),
        layer_attentions=tuple(int(kind == "sliding_attention") for kind in config.layer_types),
        moe=moe,
        **ropes_by_kind(config),
    )


def activations(limits: Sequence[float | None] | None) -> tuple[str, ...]:
    """Return the activation of each layer's experts, of which ``limits`` are the bounds."""
    names = {0: "silu", 7: "silu_7", 16: "silu_16"}
    unknown = [limit for limit in limits or () if (limit or 0) not in names]
    reject_unless(not unknown, f"a bound {unknown[:1]} in swiglu_limits, which may be 0, 7 or 16,")
    return tuple(names[int(limit or 0)] for limit in limits or ())


NAMES = ExpertNames(router="moe.gate", correction="moe.router_bias", shared="share_expert.{}_proj")


def experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer, which are stacked."""
    moe, hidden = moe_of(spec), spec.hidden_size
    count, size = moe.num_experts, moe.intermediate_size
    gate, up = (Load(f"{prefix}moe.{part}_proj.weight", (count, size, hidden)) for part in ("gate", "up"))
    down = Load(f"{prefix}moe.down_proj.weight", (count, hidden, size))
    engine = NAMES.tensors(spec, prefix)
    for e in range(count):
        engine[f"moe.experts.{e}.gate_up.weight"] = concat(expert_of(gate, e), expert_of(up, e))
        engine[f"moe.experts.{e}.down.weight"] = expert_of(down, e)
    return engine


LAYOUT = Layout(output_gate="self_attn.g_proj", experts=experts)
FAMILY = Family(("Step3p5ForCausalLM", "Step3p7FlashForCausalLM"), spec, LAYOUT.tensors, config=config)
