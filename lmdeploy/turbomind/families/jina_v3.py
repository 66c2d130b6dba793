"""Jina embeddings v3: XLM-RoBERTa with rotary positions.

Its authors publish it as an XLM-RoBERTa with an adapter for each task (`lmdeploy.model_metadata.task_adapters`); others
converted it for ``transformers``.
"""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors, token_types
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec

LAYOUT = Layout(
    embedding="embeddings.word_embeddings",
    layer="encoder.layers.{}.",
    mlp_norm="norm1",
    final_norm="norm2",
    qkv="mixer.Wqkv",
    o="mixer.out_proj",
    up="mlp.fc1",
    down="mlp.fc2",
)


def is_published(raw: Mapping[str, Any]) -> bool:
    """Return whether a config.json is the authors'."""
    return raw.get("model_type") == "xlm-roberta" and raw.get("position_embedding_type") == "rotary"


def config(raw: Mapping[str, Any]) -> Any:
    """Return the config in the names of ``transformers``."""
    from transformers import JinaEmbeddingsV3Config

    if not is_published(raw):
        return JinaEmbeddingsV3Config(**raw)
    rope = {"rope_type": "default", "rope_theta": float(raw["rotary_emb_base"])}
    return JinaEmbeddingsV3Config(**dict(raw) | {"model_type": "jina_embeddings_v3", "rope_parameters": rope})


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return post_norm_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        ropes=(rope_of(config),),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    return post_norm_tensors(spec, LAYOUT, "emb_ln") | token_types(spec, "embeddings.token_type_embeddings")


FAMILY = Family(names_of("JinaEmbeddingsV3"), spec, tensors, config)
