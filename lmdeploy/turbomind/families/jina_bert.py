"""JinaBERT (Jina embeddings v2, reranker v1): BERT with ALiBi to both sides and a gated MLP, in code of its own."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.alibi import alibi_slopes
from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, refuse_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors, token_types
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec

LAYOUT = Layout(
    embedding="embeddings.word_embeddings",
    layer="encoder.layer.{}.",
    mlp_norm="attention.output.LayerNorm",
    final_norm="mlp.layernorm",
    q="attention.self.query",
    k="attention.self.key",
    v="attention.self.value",
    o="attention.output.dense",
    gate_up="mlp.gated_layers",
    down="mlp.wo",
)
_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}


def config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return a config of a config.json."""
    kind = raw.get("position_embedding_type", "absolute")
    refuse_unless(kind == "alibi", f"position_embedding_type {kind}")
    return SimpleNamespace(**{"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "type_vocab_size": 2} | dict(raw))


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; of the MLP's projections the last one has a bias."""
    kind = getattr(config, "feed_forward_type", "original")
    refuse_unless(kind in _ACTIVATIONS, f"feed_forward_type {kind}")
    slopes = alibi_slopes(config.num_attention_heads)
    return post_norm_spec(
        config,
        checkpoint,
        mlp=MlpSpec(_ACTIVATIONS[kind], down_bias=True),
        attention=attention_spec(config, qkv_bias=True, o_bias=True, windows=(), alibi_slopes=slopes),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    engine = post_norm_tensors(spec, LAYOUT, "embeddings.LayerNorm")
    return engine | token_types(spec, "embeddings.token_type_embeddings")


FAMILY = Family(names_of("JinaBert"), spec, tensors, config)
