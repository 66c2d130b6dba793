"""Llama and the architectures with its tensors: Mistral, Qwen2.

Pre-norm decoder, grouped-query attention with rotary embedding, gated SiLU MLP, RMSNorm.
"""

import dataclasses
import re
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, refuse_unless, rope_of
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import AttentionSpec, MlpSpec, ModelSpec, NormSpec

_COMPUTED_BUFFER = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


def llama_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of a ``LlamaForCausalLM``."""
    refuse_unless(not config.mlp_bias, "mlp_bias")
    return _decoder_spec(config, checkpoint, qkv_bias=config.attention_bias, o_bias=config.attention_bias)


def mistral_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of a ``MistralForCausalLM``.

    Sliding-window attention equals full attention for sequences that fit in the window, so the window bounds
    ``max_position_embeddings``.
    """
    spec = _decoder_spec(config, checkpoint, qkv_bias=False, o_bias=False)
    if config.sliding_window is None:
        return spec
    longest = min(spec.max_position_embeddings, config.sliding_window)
    return dataclasses.replace(spec, max_position_embeddings=longest)


def qwen2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of a ``Qwen2ForCausalLM``."""
    refuse_unless(not config.sliding_window, "use_sliding_window")
    return _decoder_spec(config, checkpoint, qkv_bias=True, o_bias=False)


def _decoder_spec(config: Any, checkpoint: Checkpoint, *, qkv_bias: bool, o_bias: bool) -> ModelSpec:
    refuse_unless(config.hidden_act in {"silu", "swish"}, f"hidden_act {config.hidden_act!r}")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelSpec(
        architecture=checkpoint.architecture,
        model_name=checkpoint.model_name,
        dtype=checkpoint.dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        norm=NormSpec(eps=config.rms_norm_eps),
        mlp=MlpSpec(activation="silu"),
        attention=AttentionSpec(qkv_bias=qkv_bias, o_bias=o_bias, scale=head_dim**-0.5),
        ropes=(rope_of(config),),
        max_position_embeddings=config.max_position_embeddings,
        tied_embeddings=bool(config.tie_word_embeddings),
        bos_token_id=checkpoint.bos_token_id,
        eos_token_ids=checkpoint.eos_token_ids,
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor over the checkpoint's."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    engine: dict[str, Expression] = {
        "token_embedding": Load("model.embed_tokens.weight", (vocab, hidden)),
        "final_norm.weight": Load("model.norm.weight", (hidden,)),
    }
    if not spec.tied_embeddings:
        engine["lm_head.weight"] = Load("lm_head.weight", (vocab, hidden))
    for i in range(spec.num_layers):
        layer = _layer_tensors(spec, f"model.layers.{i}.")
        engine |= {f"layers.{i}.{name}": expression for name, expression in layer.items()}
    return engine


def _layer_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    rows = {"q": q_rows, "k": kv_rows, "v": kv_rows}
    attention = prefix + "self_attn."
    layer: dict[str, Expression] = {
        "attention_norm.weight": Load(prefix + "input_layernorm.weight", (hidden,)),
        "attention.qkv.weight": concat(*(Load(f"{attention}{p}_proj.weight", (n, hidden)) for p, n in rows.items())),
        "attention.o.weight": Load(attention + "o_proj.weight", (hidden, q_rows)),
        "mlp_norm.weight": Load(prefix + "post_attention_layernorm.weight", (hidden,)),
        "mlp.gate_up.weight": concat(
            Load(prefix + "mlp.gate_proj.weight", (inner, hidden)), Load(prefix + "mlp.up_proj.weight", (inner, hidden))
        ),
        "mlp.down.weight": Load(prefix + "mlp.down_proj.weight", (hidden, inner)),
    }
    if spec.attention.qkv_bias:
        layer["attention.qkv.bias"] = concat(*(Load(f"{attention}{p}_proj.bias", (n,)) for p, n in rows.items()))
    if spec.attention.o_bias:
        layer["attention.o.bias"] = Load(attention + "o_proj.bias", (hidden,))
    return layer


def may_ignore(name: str, spec: ModelSpec) -> bool:
    """Return whether a checkpoint tensor the engine does not read is harmless: a computed buffer, or a tied copy."""
    return bool(_COMPUTED_BUFFER.search(name)) or (name == "lm_head.weight" and spec.tied_embeddings)
