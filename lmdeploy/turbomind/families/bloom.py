"""BLOOM: ALiBi, LayerNorm, also of the embeddings, a plain MLP, biases everywhere."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import falcon
from lmdeploy.turbomind.families.alibi import alibi_slopes
from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, refuse_unless
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec

_TRAINED = 2048  # tokens of a text; ALiBi itself has no limit, and configs do not name one


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(not config.apply_residual_connection_post_layernorm, "apply_residual_connection_post_layernorm")
    config.max_position_embeddings = getattr(config, "seq_length", None) or _TRAINED
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=4 * config.hidden_size,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.layer_norm_epsilon, kind="layer", bias=True),
        has_embedding_norm=True,
        mlp=MlpSpec("gelu_tanh", is_gated=False, bias=True),
        attention=attention_spec(
            config, qkv_bias=True, o_bias=True, alibi_slopes=alibi_slopes(config.num_attention_heads)
        ),
        ropes=(),
    )


LAYOUT = dataclasses.replace(falcon.LAYOUT, embedding_norm="transformer.word_embeddings_layernorm")
FAMILY = Family(("BloomForCausalLM",), spec, LAYOUT.tensors, sizes=("vocab_size", "hidden_size|n_embed"))
