"""Llama 4's text part: attention in chunks, layers without rotation, one expert a token and a shared one."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.experts import moe_of, stacked_experts
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import AttentionSpec, ModelSpec, MoeSpec, RouterSpec

_MLP = "feed_forward."


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.intermediate_size_mlp,
        attention=_attention(config),
        ropes=(rope_of(config, is_interleaved=True),),
        layer_ropes=tuple(0 if rotates else -1 for rotates in config.no_rope_layers),
        moe=_experts(config) if config.moe_layers else None,
    )


def _attention(config: Any) -> AttentionSpec:
    chunk = config.attention_chunk_size or 0
    is_tempered = config.attn_temperature_tuning
    return attention_spec(
        config,
        qkv_bias=config.attention_bias,
        o_bias=config.attention_bias,
        qk_norm="unit" if config.use_qk_norm else "none",
        windows=tuple(chunk if kind == "chunked_attention" else 0 for kind in config.layer_types),
        is_chunked=True,
        temperature_length=config.floor_scale if is_tempered else 0,
        temperature_scale=config.attn_scale if is_tempered else 0.0,
        tempers_unrotated=True,
    )


def _experts(config: Any) -> MoeSpec:
    return MoeSpec(
        config.num_local_experts,
        config.num_experts_per_tok,
        config.intermediate_size,
        RouterSpec("sigmoid", scales_input=True),
        layers=tuple(layer in config.moe_layers for layer in range(config.num_hidden_layers)),
        shared_intermediate_size=config.intermediate_size,
    )


def experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer, which are stacked as [in, out]."""
    moe, hidden = moe_of(spec), spec.hidden_size
    count, size = moe.num_experts, moe.intermediate_size
    router, stack, shared = (f"{prefix}{_MLP}{name}" for name in ("router", "experts.", "shared_expert."))
    gate, up = (Load(f"{shared}{name}_proj.weight", (size, hidden)) for name in ("gate", "up"))
    engine: dict[str, Expression] = {
        "moe.router.weight": Load(f"{router}.weight", (count, hidden)),
        "moe.shared.gate_up.weight": concat(gate, up),
        "moe.shared.down.weight": Load(f"{shared}down_proj.weight", (hidden, size)),
    }
    return engine | stacked_experts(spec, f"{stack}gate_up_proj", f"{stack}down_proj", are_turned=True)


LAYOUT = Layout(gate=_MLP + "gate_proj", up=_MLP + "up_proj", down=_MLP + "down_proj", experts=experts)
FAMILY = Family(("Llama4ForCausalLM",), spec, LAYOUT.tensors)
