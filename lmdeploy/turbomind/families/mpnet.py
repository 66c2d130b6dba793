"""MPNet: BERT without token types, with a learned bias of attention for each distance, in buckets as T5 has them."""

import math
from typing import Any

import numpy as np

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, refuse_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of, transpose
from lmdeploy.turbomind.spec import EncoderSpec, MlpSpec, ModelSpec

LAYOUT = Layout(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    layer="encoder.layer.{}.",
    mlp_norm="attention.LayerNorm",
    final_norm="output.LayerNorm",
    q="attention.attn.q",
    k="attention.attn.k",
    v="attention.attn.v",
    o="attention.attn.o",
    up="intermediate.dense",
    down="output.dense",
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


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    buckets = config.relative_attention_num_buckets
    refuse_unless(buckets == _BUCKETS, f"relative_attention_num_buckets {buckets}")
    return post_norm_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        attention=attention_spec(config, qkv_bias=True, o_bias=True, windows=(), bias_reach=_FARTHEST),
        max_position_embeddings=config.max_position_embeddings - _UNUSED,
        learned_positions=config.max_position_embeddings - _UNUSED,
        encoder=EncoderSpec(),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; all layers have the same biases."""
    engine = post_norm_tensors(spec, LAYOUT, "embeddings.LayerNorm")
    rows = _UNUSED + spec.learned_positions
    table = Load(f"{LAYOUT.positions}.weight", (rows, spec.hidden_size))
    engine["position_embedding"] = rows_of(table, _UNUSED, rows)
    by_bucket = Load("encoder.relative_attention_bias.weight", (_BUCKETS, spec.num_heads))
    buckets = map(bucket_of, range(-_FARTHEST, _FARTHEST + 1))
    by_head = transpose(concat(*(rows_of(by_bucket, bucket, bucket + 1) for bucket in buckets)))
    biases = reshape(by_head, spec.num_heads * (2 * _FARTHEST + 1))
    return engine | {f"layers.{i}.attention.distance_biases": biases for i in range(spec.num_layers)}


FAMILY = Family(names_of("MPNet"), spec, tensors)
