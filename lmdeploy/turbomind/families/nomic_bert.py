"""NomicBERT: BERT with rotary positions, and a gated MLP without biases or, with experts in some layers, a plain one.

Published with code of its own, whose config.json has GPT-2's names; ``transformers`` writes others.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, reject_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors
from lmdeploy.turbomind.families.experts import joined_experts
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope
from lmdeploy.turbomind.manifest import Constant, Expression, Load
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, MoeSpec

LAYOUT = Layout(
    embedding="embeddings.word_embeddings",
    layer="encoder.layers.{}.",
    mlp_norm="norm1",
    final_norm="norm2",
    qkv="attn.Wqkv",
    o="attn.out_proj",
    gate="mlp.fc12",
    up="mlp.fc11",
    down="mlp.fc2",
)
_BIAS_CHANNELS = 64  # of a shared expert that gives the bias of the experts' sum alone: enough for eight ranks
_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return a config in the names of ``transformers``, of a config.json in either."""
    found = {name: raw[name] if name in raw else raw[older] for name, older in _NAMES.items()}
    rope = raw.get("rope_parameters") or {}
    theta = rope.get("rope_theta", raw.get("rotary_emb_base", 10000.0))
    reject_unless(rope.get("rope_type", "default") == "default", f"rope type {rope.get('rope_type')}")
    reject_unless(not raw.get("prenorm"), "prenorm")
    every = raw.get("moe_every_n_layers") or 0
    for name in ("expert_choice_router", "num_shared_experts", "moe_normalize_expert_weights"):
        reject_unless(not (every and raw.get(name)), name)
    reject_unless(raw.get("rotary_emb_fraction", 1.0) == 1.0, "rotary_emb_fraction unlike 1")
    reject_unless(not raw.get("rotary_emb_interleaved"), "rotary_emb_interleaved")
    is_gated = found["hidden_act"] in {"swiglu", "silu"}
    bias = bool(raw.get("qkv_proj_bias", False)), bool(raw.get("mlp_fc1_bias", False))
    reject_unless(not every or (bias[1] and not is_gated), "experts without biases, or with a gate, in NomicBERT")
    layers = tuple(i % every == 1 for i in range(found["num_hidden_layers"])) if every else ()
    return SimpleNamespace(
        **found,
        vocab_size=raw["vocab_size"],
        type_vocab_size=raw.get("type_vocab_size", 0),
        theta=float(theta),
        bias=bias[0],
        mlp=MlpSpec("silu" if is_gated else activation_of(found["hidden_act"]), is_gated=is_gated, bias=bias[1]),
        moe=MoeSpec(
            raw["num_experts"],
            raw["moe_top_k"],
            found["intermediate_size"],
            layers=layers,
            shared_intermediate_size=_BIAS_CHANNELS,
        )
        if every
        else None,
        tie_word_embeddings=True,
    )


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return post_norm_spec(
        config,
        checkpoint,
        bias=config.bias,
        mlp=config.mlp,
        moe=config.moe,
        ropes=(default_rope(config.theta, config.hidden_size // config.num_attention_heads),),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    layout = LAYOUT if spec.mlp.is_gated else replace(LAYOUT, up="mlp.fc1", experts=_experts)
    return post_norm_tensors(spec, layout, "emb_ln")


def _experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    engine = joined_experts(spec, f"{prefix}mlp.")
    return with_bias(spec, engine, Load(f"{prefix}mlp.experts.bias", (spec.hidden_size,)))


def with_bias(spec: ModelSpec, engine: dict[str, Expression], bias: Expression) -> dict[str, Expression]:
    """Return the experts of a layer, which have no biases themselves, with one that is added to their sum."""
    engine["moe.shared.up.weight"] = Constant((_BIAS_CHANNELS, spec.hidden_size), 0.0)
    engine["moe.shared.down.weight"] = Constant((spec.hidden_size, _BIAS_CHANNELS), 0.0)
    weights = [name for name in engine if name.endswith(("up.weight", "down.weight"))]
    engine |= {name.replace("weight", "bias"): Constant(engine[name].shape[:1], 0.0) for name in weights}
    return engine | {"moe.shared.down.bias": bias}


# The other sizes have one of two names.
FAMILY = Family(names_of("NomicBert"), spec, tensors, config, sizes=("vocab_size",))
