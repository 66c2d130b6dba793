"""DeBERTa-v2 and v3: BERT with disentangled attention, whose scores have products with vectors of distances."""

from dataclasses import replace
from typing import Any

import numpy as np

from lmdeploy.turbomind.families.bert import BERT_LAYOUT
from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, reject_unless
from lmdeploy.turbomind.families.encoders import names_of, post_norm_spec, post_norm_tensors
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import ModelSpec

LAYOUT = replace(BERT_LAYOUT, q="attention.self.query_proj", k="attention.self.key_proj", v="attention.self.value_proj")


def buckets_of(span: int, farthest: int) -> tuple[int, ...]:
    """Return the vector of each distance from ``-farthest`` to ``farthest``, of ``2 span``.

    Distances up to half of ``span`` have one each, and others share the rest by their logarithm.
    """
    distances = np.arange(-farthest, farthest + 1)
    half = span // 2
    if span < farthest:
        sizes = np.maximum(abs(distances), half).astype(np.float32)
        shares = np.log(sizes / np.float32(half)) / np.log(np.float32((farthest - 1) / half))
        logarithmic = np.ceil(shares * np.float32(half - 1)).astype(int) + half
        distances = np.where(abs(distances) <= half, distances, logarithmic * np.sign(distances))
    return tuple(int(bucket) for bucket in (distances + span).clip(0, 2 * span - 1))


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    head_dim = config.hidden_size // config.num_attention_heads
    kinds = {*(config.pos_att_type or [])}
    reject_unless(config.relative_attention and kinds == {"c2p", "p2c"}, f"DeBERTa with pos_att_type {sorted(kinds)}")
    needed = {"share_att_key": True, "norm_rel_ebd": "layer_norm"}
    sizes = {"conv_kernel_size": 0, "embedding_size": config.hidden_size, "attention_head_size": head_dim}
    for name, value in (needed | sizes).items():  # XL has a convolution
        given = getattr(config, name, sizes.get(name))
        reject_unless(given == value, f"DeBERTa with {name} {given}")
    farthest = config.max_relative_positions if config.max_relative_positions > 0 else config.max_position_embeddings
    buckets = getattr(config, "position_buckets", -1)
    return post_norm_spec(
        config,
        checkpoint,
        attention=attention_spec(
            config,
            scale=(3 * head_dim) ** -0.5,
            qkv_bias=True,
            o_bias=True,
            windows=(),
            distance_buckets=buckets_of(buckets if buckets > 0 else farthest, farthest),
        ),
        learned_positions=config.max_position_embeddings if config.position_biased_input else 0,
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    engine = post_norm_tensors(spec, LAYOUT)
    rows = spec.attention.distance_buckets[-1] + 1
    engine["distance_embedding"] = Load("encoder.rel_embeddings.weight", (rows, spec.hidden_size))
    for part in ("weight", "bias"):
        engine[f"distance_norm.{part}"] = Load(f"encoder.LayerNorm.{part}", (spec.hidden_size,))
    return engine


FAMILY = Family(names_of("DebertaV2"), spec, tensors)
