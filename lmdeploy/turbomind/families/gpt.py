"""GPT-2, GPTBigCode, GPT-NeoX and OPT."""

import dataclasses
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
from lmdeploy.turbomind.manifest import Expression, Load, rows_of, transpose
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec


# GPT-2, and StarCoder 1 (GPT-BigCode): learned positions, LayerNorm, a plain MLP, biases.
def gpt2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    by_layer = getattr(config, "scale_attn_by_inverse_layer_idx", False)
    reject_unless(not by_layer, "scale_attn_by_inverse_layer_idx")
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.n_inner or 4 * config.hidden_size,
        num_kv_heads=1 if getattr(config, "multi_query", False) else config.num_attention_heads,
        norm=NormSpec(config.layer_norm_epsilon, kind="layer", bias=True),
        learned_positions=config.max_position_embeddings,
        mlp=MlpSpec(activation_of(config.activation_function), is_gated=False, bias=True),
        attention=attention_spec(
            config, qkv_bias=True, o_bias=True, **({} if config.scale_attn_weights else {"scale": 1.0})
        ),
        ropes=(),
    )


GPT2_LAYOUT = Layout(
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    qkv="attn.c_attn",
    o="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
)
_TURNED = (".qkv.weight", ".o.weight", ".up.weight", ".down.weight")


def gpt2_tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; GPT-2's matrices are laid out as [in, out]."""
    if spec.architecture == "GPTBigCodeForCausalLM":
        return dataclasses.replace(GPT2_LAYOUT, is_grouped=spec.num_kv_heads > 1).tensors(spec)

    def turned(name: str, whole: Expression) -> Expression:
        if not name.endswith(_TURNED) or not isinstance(whole, Load):
            return whole
        return transpose(Load(whole.name, whole.shape[::-1]))

    return {name: turned(name, whole) for name, whole in GPT2_LAYOUT.tensors(spec).items()}


GPT2 = Family(
    ("GPT2LMHeadModel", "GPTBigCodeForCausalLM"),
    gpt2_spec,
    gpt2_tensors,
    sizes=("vocab_size", "n_embd", "n_layer", "n_head"),
)


# GPT-NeoX, Pythia, Dolly: LayerNorm, a plain MLP, one matrix for q, k and v, part of a head rotated.
def gpt_neox_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.layer_norm_eps, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        block=BlockSpec(is_parallel=config.use_parallel_residual),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
    )


GPT_NEOX_LAYOUT = Layout(
    embedding="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    lm_head="embed_out",
    layer="gpt_neox.layers.{}.",
    qkv="attention.query_key_value",
    is_grouped=True,
    o="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
GPT_NEOX = Family(("GPTNeoXForCausalLM",), gpt_neox_spec, GPT_NEOX_LAYOUT.tensors)


# OPT: learned positions, of which the first two belong to no token, LayerNorm, a plain MLP, biases.
_UNUSED = 2  # first rows of the table of positions


def opt_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    reject_unless(config.do_layer_norm_before, "do_layer_norm_before false (OPT-350m)")
    reject_unless(config.word_embed_proj_dim == config.hidden_size, "word_embed_proj_dim unlike hidden_size")
    reject_unless(config.layer_norm_elementwise_affine, "norms without weights")
    bias = config.enable_bias
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.ffn_dim,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(1e-5, kind="layer", bias=True),
        learned_positions=config.max_position_embeddings,
        mlp=MlpSpec(activation_of(config.activation_function), is_gated=False, bias=bias),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
        ropes=(),
    )


OPT_LAYOUT = Layout(
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    final_norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.{}.",
    attention_norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    o="self_attn.out_proj",
    up="fc1",
    down="fc2",
)


def opt_tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    count = spec.learned_positions
    table = Load(f"{OPT_LAYOUT.positions}.weight", (_UNUSED + count, spec.hidden_size))
    return OPT_LAYOUT.tensors(spec) | {"position_embedding": rows_of(table, _UNUSED, _UNUSED + count)}


OPT = Family(
    ("OPTForCausalLM",),
    opt_spec,
    opt_tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
)
