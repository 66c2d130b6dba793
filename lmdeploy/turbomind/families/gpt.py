"""GPT-2, GPTBigCode, GPT-Neo, GPT-J, CodeGen, GPT-NeoX, OPT and BioGPT."""

import dataclasses
import functools
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
from lmdeploy.turbomind.families.rope import default_rope
from lmdeploy.turbomind.manifest import Expression, Load, concat, renamed, reshape, rows_of, transpose
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec


# GPT-2, and StarCoder 1 (GPT-BigCode): learned positions, LayerNorm, a plain MLP, biases.
def gpt2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
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


GPT2_SIZES = ("vocab_size", "n_embd", "n_layer", "n_head")
GPT2 = Family(
    ("GPT2LMHeadModel", "GPTBigCodeForCausalLM"),
    gpt2_spec,
    gpt2_tensors,
    sizes=GPT2_SIZES,
)


# GPT-Neo: GPT-2 whose scores are not scaled, with windows in every other layer.
def gpt_neo_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    windows = tuple(config.window_size if kind == "local" else 0 for kind in config.attention_layers)
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.intermediate_size or 4 * config.hidden_size,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.layer_norm_epsilon, kind="layer", bias=True),
        learned_positions=config.max_position_embeddings,
        mlp=MlpSpec(activation_of(config.activation_function), is_gated=False, bias=True),
        attention=attention_spec(config, scale=1.0, o_bias=True, windows=windows),
        ropes=(),
    )


GPT_NEO_LAYOUT = dataclasses.replace(
    GPT2_LAYOUT,
    qkv="",
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    o="attn.attention.out_proj",
)
GPT_NEO_SIZES = ("vocab_size", "hidden_size", "num_layers", "num_heads")
GPT_NEO = Family(("GPTNeoForCausalLM",), gpt_neo_spec, GPT_NEO_LAYOUT.tensors, sizes=GPT_NEO_SIZES)


# GPT-J and CodeGen: parallel halves that share a LayerNorm, part of a head rotated in neighbouring pairs.
_GPTJ_THETA = 10000.0


def gptj_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(config.rotary_dim is not None, "rotary_dim null")
    rope = dataclasses.replace(default_rope(_GPTJ_THETA, config.rotary_dim), is_interleaved=True)
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.n_inner or 4 * config.hidden_size,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.layer_norm_epsilon, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.activation_function), is_gated=False, bias=True),
        block=BlockSpec(is_parallel=True, shares_norm=True),
        attention=attention_spec(config),
        ropes=(rope,),
        output=OutputSpec(bias=True),
    )


GPTJ_LAYOUT = dataclasses.replace(
    GPT2_LAYOUT,
    qkv="",
    q="attn.q_proj",
    k="attn.k_proj",
    v="attn.v_proj",
    o="attn.out_proj",
    up="mlp.fc_in",
    down="mlp.fc_out",
)
CODEGEN_LAYOUT = dataclasses.replace(GPTJ_LAYOUT, qkv="attn.qkv_proj")
_CORES = 4  # that CodeGen was trained on: each has its heads' queries, values and keys, in this order


def gptj_tensors(spec: ModelSpec) -> dict[str, Expression]:
    if spec.architecture == "GPTJForCausalLM":
        return GPTJ_LAYOUT.tensors(spec)
    hidden = spec.hidden_size

    def joined(whole: Expression) -> Expression:
        cores = reshape(whole, _CORES, 3, hidden // _CORES, hidden)
        return concat(*(reshape(rows_of(cores, i, i + 1, dim=1), hidden, hidden) for i in (0, 2, 1)))

    engine = CODEGEN_LAYOUT.tensors(spec)
    return {name: joined(whole) if name.endswith(".qkv.weight") else whole for name, whole in engine.items()}


GPTJ = Family(("GPTJForCausalLM", "CodeGenForCausalLM"), gptj_spec, gptj_tensors, sizes=GPT2_SIZES)


# GPT-NeoX, Pythia, Dolly: LayerNorm, a plain MLP, one matrix for q, k and v, part of a head rotated.
def gpt_neox_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
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


# GPT-NeoX Japanese: halves one after the other, and no biases but that of the last attention's output.
def gpt_neox_japanese_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    attention, last = attention_spec(config), config.num_hidden_layers - 1
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=int(config.hidden_size * config.intermediate_multiple_size),
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.layer_norm_eps, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False),
        attention=attention,
        attentions=(dataclasses.replace(attention, o_bias=True),),
        layer_attentions=(0,) * last + (1,),
    )


def gpt_neox_japanese_tensors(spec: ModelSpec) -> dict[str, Expression]:

    def stored(name: str) -> str:
        return name.replace("gpt_neox.", "gpt_neox_japanese.").replace("dense.bias", "dense_bias")

    return {name: renamed(whole, stored) for name, whole in GPT_NEOX_LAYOUT.tensors(spec).items()}


GPT_NEOX_JAPANESE = Family(
    ("GPTNeoXJapaneseForCausalLM",),
    gpt_neox_japanese_spec,
    gpt_neox_japanese_tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
)


# OPT and BioGPT: learned positions, of which the first two belong to no token, LayerNorm, a plain MLP, biases.
_UNUSED = 2  # first rows of the table of positions
_NORM_EPS = 1e-5  # whatever the config says


def opt_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(config.do_layer_norm_before, "do_layer_norm_before false (OPT-350m)")
    reject_unless(config.word_embed_proj_dim == config.hidden_size, "word_embed_proj_dim unlike hidden_size")
    reject_unless(config.layer_norm_elementwise_affine, "norms without weights")
    bias = config.enable_bias
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.ffn_dim,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(_NORM_EPS, kind="layer", bias=True),
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


def biogpt_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(_NORM_EPS, kind="layer", bias=True),
        learned_positions=config.max_position_embeddings,
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        attention=attention_spec(config, qkv_bias=True, o_bias=True),
        ropes=(),
        embedding_scale=config.hidden_size**0.5 if config.scale_embedding else 1.0,
    )


BIOGPT_LAYOUT = dataclasses.replace(
    OPT_LAYOUT,
    embedding="biogpt.embed_tokens",
    positions="biogpt.embed_positions",
    final_norm="biogpt.layer_norm",
    lm_head="output_projection",
    layer="biogpt.layers.{}.",
)


def opt_tensors(spec: ModelSpec, layout: Layout = OPT_LAYOUT) -> dict[str, Expression]:
    count = spec.learned_positions
    table = Load(f"{layout.positions}.weight", (_UNUSED + count, spec.hidden_size))
    return layout.tensors(spec) | {"position_embedding": rows_of(table, _UNUSED, _UNUSED + count)}


OPT = Family(
    ("OPTForCausalLM",),
    opt_spec,
    opt_tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
)
BIOGPT = Family(("BioGptForCausalLM",), biogpt_spec, functools.partial(opt_tensors, layout=BIOGPT_LAYOUT))
