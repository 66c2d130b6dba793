"""Zamba2: Mamba-2 in each layer; in front of some, attention and an MLP that these share, but for adapters."""

import math
import re
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    reject_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mamba import mamba_spec, mamba_tensors
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import AddProduct, Concat, Expression, Load, concat, renamed
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, SharedBlocksSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(config.tie_word_embeddings, "tie_word_embeddings=false (blocks that are not shared)")
    mlp, config.hidden_act = MlpSpec(activation_of(config.hidden_act), bias=config.add_bias_linear), "silu"
    config.time_step_limit = (config.time_step_min, math.inf)
    is_shared = tuple(kind == "hybrid" for kind in config.layers_block_type)
    recurrence = mamba_spec(
        config,
        num_heads=config.n_mamba_heads,
        num_key_heads=config.mamba_ngroups,
        key_dim=config.mamba_d_state,
        value_dim=config.mamba_headdim,
        conv_kernel=config.mamba_d_conv,
        conv_bias=True,
        bias=config.add_bias_linear,
        norm_eps=1e-5,
    )
    blocks = SharedBlocksSpec(config.num_mem_blocks, config.adapter_rank, config.use_shared_attention_adapter)
    return decoder_spec(
        config,
        checkpoint,
        mlp=mlp,
        attention=attention_spec(config, scale=(config.attention_head_dim / 2) ** -0.5, windows=()),
        ropes=(rope_of(config),) if config.use_mem_rope else (),
        layer_mixers=tuple("both" if shares else "recurrence" for shares in is_shared),
        layer_mlps=is_shared,
        recurrence=recurrence,
        shared_blocks=blocks if any(is_shared) else None,
    )


LAYOUT = Layout(
    final_norm="model.final_layernorm",
    mlp_norm="block.pre_ff_layernorm",
    q="block.self_attn.q_proj",
    k="block.self_attn.k_proj",
    v="block.self_attn.v_proj",
    o="block.self_attn.o_proj",
    gate_up="block.feed_forward.gate_up_proj",
    down="block.feed_forward.down_proj",
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mamba."),
)


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor.

    Each layer has a copy of its block, to which its adapters are added: one linear layer in place of three.
    """
    engine, blocks, hidden = LAYOUT.tensors(spec), spec.shared_blocks, spec.hidden_size
    if blocks is None:
        return engine
    users = [layer for layer in range(spec.num_layers) if spec.has_attention(layer)]
    for use, layer in enumerate(users):
        ours, name = f"model.layers.{layer}.", f"layers.{layer}."
        block = f"model.layers.{users[use % blocks.count]}.shared_transformer."  # the first that has it, in checkpoints
        engine |= {key: _renamed(it, ours, block) for key, it in engine.items() if key.startswith(name)}
        engine[f"{name}shared.norm.weight"] = Load(f"{block}input_layernorm.weight", (2 * hidden,))
        engine[f"{name}shared.project.weight"] = Load(f"{ours}linear.weight", (hidden, hidden))
        adapters = {"mlp.gate_up.weight": ["feed_forward.gate_up_proj"]}
        if blocks.adapts_attention:
            adapters["attention.qkv.weight"] = [f"self_attn.linear_{part}" for part in "qkv"]
        for linear, stored in adapters.items():
            whole = engine[name + linear]
            parts = whole.args if isinstance(whole, Concat) else (whole,)
            pairs = zip(parts, (f"{block}{adapter}_adapter_list.{use}." for adapter in stored), strict=True)
            engine[name + linear] = concat(*(_adapted(part, adapter, blocks.adapter_rank) for part, adapter in pairs))
    return engine


def _renamed(tensor: Expression, ours: str, block: str) -> Expression:
    def stored(name: str) -> str:
        name = name.replace(f"{ours}block.", block)
        return re.sub(rf"^{ours}(mamba|input_layernorm)\.", rf"{ours}mamba_decoder.\1.", name)

    return renamed(tensor, stored)


def _adapted(matrix: Expression, adapter: str, rank: int) -> Expression:
    up, down = (matrix.shape[0], rank), (rank, matrix.shape[1])
    return AddProduct((matrix, Load(f"{adapter}1.weight", up), Load(f"{adapter}0.weight", down)))


FAMILY = Family(("Zamba2ForCausalLM",), spec, tensors)
