"""Baichuan and Baichuan2: the 7B rotates, the 13B has ALiBi; Baichuan2 normalises its output layer."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, llama_config
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import alibi_slopes
from lmdeploy.turbomind.spec import ModelSpec, OutputSpec

# The vocabulary of Baichuan2, whose output layer is normalised; the config has no other mark of it.
_BAICHUAN2_VOCAB = 125696


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Llama's; the 13B alone lacks ``max_position_embeddings``, since ALiBi has no table."""
    config = llama_config({"max_position_embeddings": raw.get("model_max_length")} | dict(raw))
    config.has_alibi = raw.get("max_position_embeddings") is None
    return config


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    base = decoder_spec(config, checkpoint, output=OutputSpec(normalizes_weight=config.vocab_size == _BAICHUAN2_VOCAB))
    if not config.has_alibi:
        return base
    attention = attention_spec(config, alibi_slopes=alibi_slopes(config.num_attention_heads))
    return dataclasses.replace(base, attention=attention, ropes=())


FAMILY = Family(
    ("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    spec,
    Layout(qkv="self_attn.W_pack").tensors,
    config=read_config,
)
