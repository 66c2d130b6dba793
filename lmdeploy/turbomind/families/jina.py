"""Jina embeddings v2, v3 and v5."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.bert import BERT_LAYOUT
from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, reject_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors
from lmdeploy.turbomind.families.llama import EUROBERT
from lmdeploy.turbomind.families.nomic_bert import LAYOUT as NOMIC_LAYOUT
from lmdeploy.turbomind.families.qwen import QWEN3
from lmdeploy.turbomind.families.rope import alibi_slopes, rope_of
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec

# JinaBERT (Jina embeddings v2, reranker v1): BERT with ALiBi to both sides and a gated MLP, in code of its own.
JINA_BERT_LAYOUT = replace(BERT_LAYOUT, final_norm="mlp.layernorm", gate_up="mlp.gated_layers", down="mlp.wo")
_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}


def jina_bert_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return a config of a config.json."""
    kind = raw.get("position_embedding_type", "absolute")
    reject_unless(kind == "alibi", f"position_embedding_type {kind}")
    return SimpleNamespace(**{"tie_word_embeddings": True, "type_vocab_size": 2} | dict(raw))


def jina_bert_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; of the MLP's projections the last one has a bias."""
    kind = getattr(config, "feed_forward_type", "original")
    reject_unless(kind in _ACTIVATIONS, f"feed_forward_type {kind}")
    slopes = alibi_slopes(config.num_attention_heads)
    return post_norm_spec(
        config,
        checkpoint,
        mlp=MlpSpec(_ACTIVATIONS[kind], down_bias=True),
        attention=attention_spec(config, qkv_bias=True, o_bias=True, windows=(), alibi_slopes=slopes),
    )


JINA_BERT = Family(
    names_of("JinaBert"), jina_bert_spec, lambda spec: post_norm_tensors(spec, JINA_BERT_LAYOUT), jina_bert_config
)


# Jina embeddings v3: XLM-RoBERTa with rotary positions.
#
# Its authors publish it as an XLM-RoBERTa with an adapter for each task (`lmdeploy.model_metadata.task_adapters`);
# others converted it for ``transformers``.
JINA_V3_LAYOUT = replace(NOMIC_LAYOUT, qkv="mixer.Wqkv", o="mixer.out_proj", up="mlp.fc1")


def is_published(raw: Mapping[str, Any]) -> bool:
    """Return whether a config.json is the authors'."""
    return raw.get("model_type") == "xlm-roberta" and raw.get("position_embedding_type") == "rotary"


def jina_v3_config(raw: Mapping[str, Any]) -> Any:
    """Return the config in the names of ``transformers``."""
    from transformers import JinaEmbeddingsV3Config

    if not is_published(raw):
        return JinaEmbeddingsV3Config(**raw)
    rope = {"rope_type": "default", "rope_theta": float(raw["rotary_emb_base"])}
    return JinaEmbeddingsV3Config(**dict(raw) | {"model_type": "jina_embeddings_v3", "rope_parameters": rope})


JINA_V3 = Family(
    names_of("JinaEmbeddingsV3"),
    lambda config, checkpoint: post_norm_spec(config, checkpoint, ropes=(rope_of(config),)),
    lambda spec: post_norm_tensors(spec, JINA_V3_LAYOUT, "emb_ln"),
    jina_v3_config,
)


# Jina embeddings v5: Qwen3 (small) or EuroBERT (nano), with an adapter for each task in a folder of its own.
def jina_v5_config(raw: Mapping[str, Any]) -> Any:
    """Return the config in the names of ``transformers``."""
    from transformers import EuroBertConfig, Qwen3Config

    fields = {name: value for name, value in raw.items() if name not in {"model_type", "auto_map"}}
    return (EuroBertConfig if "mask_token_id" in raw else Qwen3Config)(**fields)


JINA_V5 = Family(
    ("JinaEmbeddingsV5Model",),
    lambda config, checkpoint: (EUROBERT if config.model_type == "eurobert" else QWEN3).spec(config, checkpoint),
    lambda spec: (EUROBERT if spec.encoder else QWEN3).tensors(spec),
    jina_v5_config,
)
