"""GTE (v1.5 and multilingual): BERT with rotary positions and a gated MLP; ``NewModel`` in code of its own."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.bert import BERT_LAYOUT
from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, reject_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors
from lmdeploy.turbomind.families.rope import default_rope
from lmdeploy.turbomind.manifest import Expression, Load, concat, rows_of
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec

LAYOUT = replace(
    BERT_LAYOUT,
    mlp_norm="attn_ln",
    final_norm="mlp_ln",
    qkv="attention.qkv_proj",
    o="attention.o_proj",
    gate_up="mlp.up_gate_proj",
    down="mlp.down_proj",
)


def config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return a config of either config.json, with the base of its rotation."""
    head_dim = raw["hidden_size"] // raw["num_attention_heads"]
    rope = dict(raw.get("rope_parameters") or {"rope_theta": raw.get("rope_theta", 10000.0)})
    scaling = raw.get("rope_scaling") or {}
    kind = scaling.get("type") or rope.get("rope_type", "default")
    reject_unless(kind in {"ntk", "default"}, f"rope type {kind}")
    if kind == "ntk":  # NTK by a fixed factor: another base
        rope["rope_theta"] *= float(scaling["factor"]) ** (head_dim / (head_dim - 2))
    reject_unless(raw.get("layer_norm_type", "layer_norm") == "layer_norm", "layer_norm_type unlike layer_norm")
    reject_unless(raw.get("position_embedding_type", "rope") == "rope", "positions that are not rotary")
    reject_unless(not raw.get("logn_attention_scale"), "logn_attention_scale")
    fields = dict(raw) | {"theta": float(rope["rope_theta"]), "tie_word_embeddings": True}
    return SimpleNamespace(**fields)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; of the MLP's projections the last one has a bias."""
    return post_norm_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act), down_bias=True),
        ropes=(default_rope(config.theta, config.hidden_size // config.num_attention_heads),),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; the checkpoint has the MLP's gate last, and no bias for both."""
    engine = post_norm_tensors(spec, LAYOUT)
    size = spec.intermediate_size
    for i in range(spec.num_layers):
        whole = Load(LAYOUT.layer.format(i) + f"{LAYOUT.gate_up}.weight", (2 * size, spec.hidden_size))
        engine[f"layers.{i}.mlp.gate_up.weight"] = concat(rows_of(whole, size, 2 * size), rows_of(whole, 0, size))
    return engine


FAMILY = Family(names_of("Gte", "New"), spec, tensors, config)
