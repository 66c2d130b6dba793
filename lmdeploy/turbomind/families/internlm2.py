"""InternLM2 and InternLM2.5: Llama with its own names, q, k and v in one matrix by key/value head.

That of Mono-InternVL has a further MLP for rows of images.
"""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.image_weights import OwnWeights
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.own_code import llama_config
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import ImagesSpec, ModelSpec

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

_MLP = OwnWeights(gate="feed_forward_ve.w1", up="feed_forward_ve.w3", down="feed_forward_ve.w2")
SEEING_LAYOUT = dataclasses.replace(LAYOUT, images=_MLP.tensors)
_SEEING = "InternLM2VEForCausalLM"


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    bias = bool(getattr(config, "bias", False))
    fields = {"images": ImagesSpec(own_mlp=True)} if checkpoint.architecture == _SEEING else {}
    return decoder_spec(config, checkpoint, attention=attention_spec(config, qkv_bias=bias, o_bias=bias), **fields)


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    is_seeing = spec.images is not None and spec.images.own_mlp
    return (SEEING_LAYOUT if is_seeing else LAYOUT).tensors(spec)


FAMILY = Family(("InternLM2ForCausalLM", _SEEING), spec, tensors, config=llama_config)
