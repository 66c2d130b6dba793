"""Llama, and models that differ from it in a detail: XVERSE, EuroBERT, CWM, Jais 2, SmolLM3, Seed-OSS, Helium, ..."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    llama_config,
    reject_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import EncoderSpec, MlpSpec, ModelSpec, NormSpec


# Llama 1 to 3.3, Code Llama, Yi, SmolLM2, and everything else that is published as Llama.
def llama_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=config.attention_bias, o_bias=config.attention_bias),
        mlp=MlpSpec(activation_of(config.hidden_act), bias=config.mlp_bias),
        **fields,
    )


LLAMA = Family(("LlamaForCausalLM", "IQuestCoderForCausalLM"), llama_spec, Layout().tensors)
XVERSE = Family(("XverseForCausalLM",), llama_spec, Layout().tensors, config=llama_config)  # its own code, not run


# EuroBERT: Llama's layers with attention to both sides.
EUROBERT = Family(
    ("EuroBertModel", "EuroBertForMaskedLM"),
    lambda config, checkpoint: llama_spec(config, checkpoint, encoder=EncoderSpec(), tied_embeddings=True),
    Layout().tensors,
)


# CWM: Llama with windows in most layers.
CWM = Family(("CwmForCausalLM",), decoder_spec, Layout().tensors)


# Jais 2: Llama with LayerNorm and a plain MLP.
def jais2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    base = llama_spec(config, checkpoint, norm=NormSpec(config.layer_norm_eps, kind="layer", bias=True))
    return dataclasses.replace(base, mlp=dataclasses.replace(base.mlp, is_gated=False))


JAIS2 = Family(("Jais2ForCausalLM",), jais2_spec, Layout().tensors)


# SmolLM3: Llama, with layers that do not rotate.
def smollm3_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    # The config's list says 1 where a layer rotates, whatever its name.
    layer_ropes = tuple(0 if rotates else -1 for rotates in config.no_rope_layers)
    return dataclasses.replace(llama_spec(config, checkpoint), layer_ropes=layer_ropes)


SMOLLM3 = Family(("SmolLM3ForCausalLM",), smollm3_spec, Layout().tensors)


# Seed-OSS: Llama whose q, k and v have biases, and o its own switch for one.
def seed_oss_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=config.attention_bias, o_bias=config.attention_out_bias),
        mlp=MlpSpec(activation_of(config.hidden_act), bias=config.mlp_bias),
    )


SEED_OSS = Family(("SeedOssForCausalLM",), seed_oss_spec, Layout().tensors)


# Helium: Llama whose pairs of dimensions that rotate are neighbours.
def helium_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act), bias=config.mlp_bias),
        attention=attention_spec(config, qkv_bias=config.attention_bias),
        ropes=(rope_of(config, is_interleaved=True),),
    )


HELIUM = Family(("HeliumForCausalLM",), helium_spec, Layout().tensors)


# Apertus: norms of queries and keys, and an MLP without a gate whose activation, xIELU, is learned.
def apertus_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(config.hidden_act == "xielu", f"activation {config.hidden_act!r} of Apertus")
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        mlp=MlpSpec(is_gated=False, is_xielu=True),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="head"),
    )


_APERTUS_LAYOUT = Layout(attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm")
APERTUS = Family(("ApertusForCausalLM",), apertus_spec, _APERTUS_LAYOUT.tensors)
