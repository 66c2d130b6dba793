"""Nemotron-4, Minitron, Nemotron-H, and Llama-Nemotron of layers that differ (DeciLM)."""

import dataclasses
from collections.abc import Mapping
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
from lmdeploy.turbomind.families.deepseek import corrected_router
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.gated_delta import MIXERS
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.llama import llama_spec
from lmdeploy.turbomind.families.mamba import MAMBA2_LAYOUT, mamba_spec
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, MoeSpec, NormSpec


# Nemotron-4 and Minitron: LayerNorm whose weights start at zero, a plain MLP of squared ReLU, half a head rotated.
def nemotron_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.norm_eps, kind="layer", offset=1.0, bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=config.mlp_bias),
        attention=attention_spec(config, qkv_bias=config.attention_bias, o_bias=config.attention_bias),
    )


NEMOTRON = Family(("NemotronForCausalLM",), nemotron_spec, Layout().tensors)


# Nemotron-H and 3: each layer is Mamba-2, attention without rotation, a plain MLP of squared ReLU, or experts.
NEMOTRON_H_SIZES = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")


def nemotron_h_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    kinds = config.layer_types
    config.hidden_act = config.mamba_hidden_act
    moe = None
    if "moe" in kinds:
        reject_unless(not config.mlp_bias, "mlp_bias with experts")
        moe = MoeSpec(
            num_experts=config.n_routed_experts,
            experts_per_token=config.num_experts_per_tok,
            intermediate_size=config.moe_intermediate_size,
            router=corrected_router(config),
            layers=tuple(kind == "moe" for kind in kinds),
            shared_intermediate_size=config.moe_shared_expert_intermediate_size,
            latent_size=config.moe_latent_size or 0,
        )
    recurrence = mamba_spec(
        config,
        num_heads=config.mamba_num_heads,
        num_key_heads=config.n_groups,
        key_dim=config.ssm_state_size,
        value_dim=config.mamba_head_dim,
        conv_kernel=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        min_step=float(getattr(config, "time_step_min", 0.0)),  # its modeling code takes this, not time_step_limit's
    )
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.layer_norm_epsilon),
        mlp=MlpSpec(activation_of(config.mlp_hidden_act), is_gated=False, bias=config.mlp_bias),
        attention=attention_spec(config, windows=()),
        ropes=(),
        moe=moe,
        layer_mixers=tuple(MIXERS.get(kind, "none") for kind in kinds),
        layer_mlps=tuple(kind not in MIXERS for kind in kinds),
        recurrence=recurrence if "linear_attention" in kinds else None,
    )


NEMOTRON_H_LAYOUT = dataclasses.replace(
    MAMBA2_LAYOUT,
    mlp_norm="norm",
    q="mixer.q_proj",
    k="mixer.k_proj",
    v="mixer.v_proj",
    o="mixer.o_proj",
    up="mixer.up_proj",
    down="mixer.down_proj",
    experts=ExpertNames(
        router="mixer.gate",
        correction="mixer.gate.e_score_correction_bias",
        up="mixer.experts.{}.up_proj",
        down="mixer.experts.{}.down_proj",
        shared="mixer.shared_experts.{}_proj",
        latent="mixer.fc{}_latent_proj",
    ).tensors,
)
NEMOTRON_H = Family(("NemotronHForCausalLM",), nemotron_h_spec, NEMOTRON_H_LAYOUT.tensors, sizes=NEMOTRON_H_SIZES)


# Llama-Nemotron Super and Ultra (DeciLM), published with their own code: Llamas out of a search for smaller layers.
#
# A layer may lack its attention, its MLP, or both, and has its own number of key and value heads and its own size.
_MULTIPLE = 256  # of the sizes of MLPs


def decilm_config(raw: Mapping[str, Any]) -> Any:
    """Return the config as Llama's, with the sizes of layers as lists."""
    heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
    halves = [(block["attention"], block["ffn"]) for block in raw["block_configs"]]
    for number, (attention, ffn) in enumerate(halves):
        others = ("replace_with_linear", "num_sink_tokens", "window_length", "sparsify")
        found = [f"{name} {half[name]}" for half in (attention, ffn) for name in others if half.get(name)]
        reject_unless(not found, f"layer {number} with {', '.join(found)}")
    sizes = [0 if ffn.get("no_op") else int(2 * ffn["ffn_mult"] * hidden / 3) for _, ffn in halves]
    sizes = [-(-size // _MULTIPLE) * _MULTIPLE for size in sizes]
    kv_heads = [0 if half.get("no_op") else heads // half["n_heads_in_group"] for half, _ in halves]
    fields = {"intermediate_size": max(sizes), "num_key_value_heads": max(kv_heads)}
    return llama_config(raw, **fields, layer_sizes=sizes, layer_kv_heads=kv_heads)


def decilm_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    kinds = sorted(set(filter(None, config.layer_kv_heads)), reverse=True)  # the first is the model's
    base = llama_spec(
        config,
        checkpoint,
        layer_mixers=tuple("attention" if heads else "none" for heads in config.layer_kv_heads),
        layer_mlps=tuple(size > 0 for size in config.layer_sizes),
    )
    return dataclasses.replace(
        base,
        mlp=dataclasses.replace(base.mlp, sizes=tuple(size or _MULTIPLE for size in config.layer_sizes)),
        attentions=tuple(dataclasses.replace(base.attention, num_kv_heads=heads) for heads in kinds[1:]),
        layer_attentions=tuple(kinds.index(heads) if heads else 0 for heads in config.layer_kv_heads),
    )


DECILM_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
DECILM = Family(("DeciLMForCausalLM",), decilm_spec, Layout().tensors, config=decilm_config, sizes=DECILM_SIZES)
