"""GPT-2, and StarCoder 1 (GPT-BigCode): learned positions, LayerNorm, a plain MLP, biases."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    refuse_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, transpose
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, NormSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    by_layer = getattr(config, "scale_attn_by_inverse_layer_idx", False)
    refuse_unless(not by_layer, "scale_attn_by_inverse_layer_idx")
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


LAYOUT = Layout(
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


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; GPT-2's matrices are laid out as [in, out]."""
    if spec.architecture == "GPTBigCodeForCausalLM":
        return dataclasses.replace(LAYOUT, is_grouped=spec.num_kv_heads > 1).tensors(spec)

    def turned(name: str, whole: Expression) -> Expression:
        if not name.endswith(_TURNED) or not isinstance(whole, Load):
            return whole
        return transpose(Load(whole.name, whole.shape[::-1]))

    return {name: turned(name, whole) for name, whole in LAYOUT.tensors(spec).items()}


FAMILY = Family(
    ("GPT2LMHeadModel", "GPTBigCodeForCausalLM"), spec, tensors, sizes=("vocab_size", "n_embd", "n_layer", "n_head")
)
