"""BERT, RoBERTa, XLM-RoBERTa, DistilBERT and MPNet."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, reject_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of, transpose
from lmdeploy.turbomind.spec import EncoderSpec, MlpSpec, ModelSpec

# BERT, and RoBERTa, XLM-RoBERTa and CamemBERT, whose tables of positions begin after the padding token.
_ROBERTA = ("Roberta", "XLMRoberta", "Camembert")
BERT_LAYOUT = Layout(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    layer="encoder.layer.{}.",
    mlp_norm="attention.output.LayerNorm",
    final_norm="output.LayerNorm",
    q="attention.self.query",
    k="attention.self.key",
    v="attention.self.value",
    o="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
)


def bert_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    reject_unless(kind == "absolute", f"position_embedding_type {kind}")
    reject_unless(not config.is_decoder, "is_decoder")
    unused = _unused_rows(checkpoint.architecture)
    if unused and config.pad_token_id != unused - 1:
        raise ValueError(f"pad_token_id must be {unused - 1}, got {config.pad_token_id}")
    return post_norm_spec(
        config,
        checkpoint,
        max_position_embeddings=config.max_position_embeddings - unused,
        learned_positions=config.max_position_embeddings - unused,
    )


def _with_positions(engine: dict[str, Expression], spec: ModelSpec, unused: int) -> dict[str, Expression]:
    """Return the tensors with a table of positions that begins after so many rows of the checkpoint's."""
    rows = unused + spec.learned_positions
    table = Load(f"{BERT_LAYOUT.positions}.weight", (rows, spec.hidden_size))
    return engine | {"position_embedding": rows_of(table, unused, rows)}


def _unused_rows(architecture: str) -> int:
    """Return how many rows of the table of positions no token of a text has: RoBERTa's begin after the padding's."""
    return 2 if architecture.startswith(_ROBERTA) else 0


BERT = Family(
    (*names_of("Bert", *_ROBERTA), "HF_ColBERT"),
    bert_spec,
    lambda spec: _with_positions(post_norm_tensors(spec, BERT_LAYOUT), spec, _unused_rows(spec.architecture)),
)


# DistilBERT: BERT with half as many layers, without token types.
DISTILBERT_LAYOUT = replace(
    BERT_LAYOUT,
    layer="transformer.layer.{}.",
    mlp_norm="sa_layer_norm",
    final_norm="output_layer_norm",
    q="attention.q_lin",
    k="attention.k_lin",
    v="attention.v_lin",
    o="attention.out_lin",
    up="ffn.lin1",
    down="ffn.lin2",
)


def distilbert_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return post_norm_spec(
        config,
        checkpoint,
        intermediate_size=config.hidden_dim,
        mlp=MlpSpec(activation_of(config.activation), is_gated=False, bias=True),
        learned_positions=config.max_position_embeddings,
        encoder=EncoderSpec(),
    )


DISTILBERT = Family(
    names_of("DistilBert"),
    distilbert_spec,
    lambda spec: post_norm_tensors(spec, DISTILBERT_LAYOUT),
    sizes=("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim"),
)


# MPNet: BERT without token types, with a learned bias of attention for each distance, in buckets as T5 has them.
MPNET_LAYOUT = replace(
    BERT_LAYOUT,
    mlp_norm="attention.LayerNorm",
    q="attention.attn.q",
    k="attention.attn.k",
    v="attention.attn.v",
    o="attention.attn.o",
)
_UNUSED = 2  # rows of the table of positions, which begins after the padding's
_BUCKETS, _FARTHEST = 32, 128  # of `transformers`, whatever config.json says


def bucket_of(distance: int) -> int:
    """Return the row of the table of biases for a key ``distance`` tokens after the query (Raffel et al., 2020).

    Half of the rows are for keys behind the query, half for keys in front; of each half one half is for one distance
    each, and the others share the distances up to the farthest by their logarithm.
    """
    half = _BUCKETS // 2
    single, first, size = half // 2, half if distance > 0 else 0, abs(distance)
    if size < single:
        return first + size
    share = np.log(np.float32(size / single)) / np.float32(math.log(_FARTHEST / single))
    return first + min(single + int(share * np.float32(half - single)), half - 1)


def mpnet_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    buckets = config.relative_attention_num_buckets
    reject_unless(buckets == _BUCKETS, f"relative_attention_num_buckets {buckets}")
    return post_norm_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=True, o_bias=True, windows=(), bias_reach=_FARTHEST),
        max_position_embeddings=config.max_position_embeddings - _UNUSED,
        learned_positions=config.max_position_embeddings - _UNUSED,
        encoder=EncoderSpec(),
    )


def mpnet_tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; all layers have the same biases."""
    engine = _with_positions(post_norm_tensors(spec, MPNET_LAYOUT), spec, _UNUSED)
    by_bucket = Load("encoder.relative_attention_bias.weight", (_BUCKETS, spec.num_heads))
    buckets = map(bucket_of, range(-_FARTHEST, _FARTHEST + 1))
    by_head = transpose(concat(*(rows_of(by_bucket, bucket, bucket + 1) for bucket in buckets)))
    biases = reshape(by_head, spec.num_heads * (2 * _FARTHEST + 1))
    return engine | {f"layers.{i}.attention.distance_biases": biases for i in range(spec.num_layers)}


MPNET = Family(names_of("MPNet"), mpnet_spec, mpnet_tensors)
