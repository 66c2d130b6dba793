"""NomicBERT: BERT with rotary positions, a gated MLP and no biases in attention.

Published with code of its own, whose config.json has GPT-2's names; ``transformers`` writes others.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, reject_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors, token_types
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec

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
    reject_unless(not raw.get("moe_every_n_layers"), "a mixture of experts in NomicBERT")
    reject_unless(raw.get("rotary_emb_fraction", 1.0) == 1.0, "rotary_emb_fraction unlike 1")
    reject_unless(not raw.get("rotary_emb_interleaved"), "rotary_emb_interleaved")
    reject_unless(found["hidden_act"] in {"swiglu", "silu"}, f"activation {found['hidden_act']}")
    bias = bool(raw.get("qkv_proj_bias", False)), bool(raw.get("mlp_fc1_bias", False))
    return SimpleNamespace(
        **found,
        vocab_size=raw["vocab_size"],
        type_vocab_size=raw.get("type_vocab_size", 0),
        theta=float(theta),
        bias=bias,
        tie_word_embeddings=True,
    )


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    attends, projects = config.bias
    return post_norm_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=attends, o_bias=attends, windows=()),
        mlp=MlpSpec("silu", bias=projects),
        ropes=(default_rope(config.theta, config.hidden_size // config.num_attention_heads),),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    return post_norm_tensors(spec, LAYOUT, "emb_ln") | token_types(spec, "embeddings.token_type_embeddings")


# The other sizes have one of two names.
FAMILY = Family(names_of("NomicBert"), spec, tensors, config, sizes=("vocab_size",))
