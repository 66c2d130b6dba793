"""InternLM 1 to 3 and InternLM-XComposer2."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, llama_config
from lmdeploy.turbomind.families.image_weights import OwnWeights, with_low_rank
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import ImagesSpec, MlpSpec, ModelSpec


# InternLM and InternLM3: Llama's tensors, with biases where the config says so; published with their own code.
def internlm_read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Llama's; InternLM 1 has its own words for dynamic scaling."""
    rotary = raw.get("rotary") or {}
    changes: dict[str, Any] = {}
    if rotary.get("base"):
        changes["rope_theta"] = rotary["base"]
    if rotary.get("type") == "dynamic":
        changes["rope_scaling"] = {"rope_type": "dynamic", "factor": rotary.get("scaling_factor", 1.0)}
    config = llama_config(raw, **changes)
    config.has_bias = bool(raw.get("bias", False))
    config.has_qkv_bias = bool(raw.get("qkv_bias", config.has_bias))
    return config


def internlm_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    attention = attention_spec(config, qkv_bias=config.has_qkv_bias, o_bias=config.has_bias)
    # InternLM 1 has no biases in its MLP.
    mlp_bias = config.has_bias and checkpoint.architecture == "InternLM3ForCausalLM"
    return decoder_spec(config, checkpoint, attention=attention, mlp=MlpSpec("silu", bias=mlp_bias))


INTERNLM = Family(
    ("InternLMForCausalLM", "InternLM3ForCausalLM"), internlm_spec, Layout().tensors, config=internlm_read_config
)


# InternLM2 and InternLM2.5: Llama with its own names, q, k and v in one matrix by key/value head.
#
# That of Mono-InternVL has a further MLP for rows of images.
INTERNLM2_LAYOUT = Layout(
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
SEEING_LAYOUT = dataclasses.replace(INTERNLM2_LAYOUT, images=_MLP.tensors)
_SEEING = "InternLM2VEForCausalLM"


def internlm2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    bias = bool(getattr(config, "bias", False))
    fields = {"images": ImagesSpec(own_mlp=True)} if checkpoint.architecture == _SEEING else {}
    return decoder_spec(config, checkpoint, attention=attention_spec(config, qkv_bias=bias, o_bias=bias), **fields)


def internlm2_tensors(spec: ModelSpec) -> dict[str, Expression]:
    is_seeing = spec.images is not None and spec.images.own_mlp
    return (SEEING_LAYOUT if is_seeing else INTERNLM2_LAYOUT).tensors(spec)


INTERNLM2 = Family(("InternLM2ForCausalLM", _SEEING), internlm2_spec, internlm2_tensors, config=llama_config)


# InternLM-XComposer2 and 2.5: InternLM2 whose linear layers add low-rank matrices for rows of images.
LOW_RANK = 256  # fixed in the authors' code, with a factor of 1
INTERNLM_XCOMPOSER2_LAYOUT = with_low_rank(INTERNLM2_LAYOUT, "Plora_A", "Plora_B")


INTERNLM_XCOMPOSER2 = Family(
    ("InternLMXComposer2ForCausalLM",),
    lambda config, checkpoint: dataclasses.replace(
        internlm2_spec(config, checkpoint), images=ImagesSpec(low_rank=LOW_RANK)
    ),
    INTERNLM_XCOMPOSER2_LAYOUT.tensors,
    config=llama_config,
)
