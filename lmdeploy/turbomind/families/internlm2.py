"""InternLM2 and InternLM2.5: Llama with its own names, q, k and v in one matrix by key/value head."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.own_code import llama_config
from lmdeploy.turbomind.spec import ModelSpec

LAYOUT = Layout(
    embedding="model.tok_embeddings",
    lm_head="output",
    attention_norm="attention_norm",
    mlp_norm="ffn_norm",
    qkv="attention.wqkv",
    is_grouped=True,
    o="attention.wo",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    bias = bool(getattr(config, "bias", False))
    return decoder_spec(config, checkpoint, attention=attention_spec(config, qkv_bias=bias, o_bias=bias))


FAMILY = Family(("InternLM2ForCausalLM",), spec, LAYOUT.tensors, config=llama_config)
