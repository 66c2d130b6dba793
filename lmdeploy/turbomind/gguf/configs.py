"""From the metadata of GGUF files to the config.json that the same models are published with.

What a key means: github.com/ggml-org/ggml, docs/gguf.md. What metadata do not contain and llama.cpp hard-codes
(``src/llama-model.cpp``, ``load_hparams``) is said where it is filled in.
"""

from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.gguf.metadata import Metadata

_WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe")
_FULL, _SLIDING = "full_attention", "sliding_attention"


def common(metadata: Metadata, model_type: str, eps: str = "rms_norm_eps") -> dict[str, Any]:
    """Return what all architectures have; sizes that are missing are None.

    Raises
    ------
    UnsupportedModelError
        For unknown rotary scalings, and mixtures of experts of architectures that are read without.
    ValueError
        If there is no context length or no epsilon of norms.
    """
    if metadata.get("expert_count") and model_type not in _WITH_EXPERTS:
        raise UnsupportedModelError(
            f"GGUF files of mixtures of experts of architecture {metadata.architecture} are not read; those read are "
            "llama (Mixtral), qwen2moe and qwen3moe: take the model as safetensors"
        )
    stored_eps = "layer_norm_rms_epsilon" if eps == "rms_norm_eps" else "layer_norm_epsilon"
    return {
        "model_type": model_type,
        "vocab_size": metadata.vocab_size,
        "hidden_size": metadata.get("embedding_length"),
        "intermediate_size": metadata.get("feed_forward_length"),
        "num_hidden_layers": metadata.get("block_count"),
        "num_attention_heads": metadata.get("attention.head_count"),
        "num_key_value_heads": metadata.get("attention.head_count_kv", metadata.get("attention.head_count")),
        "head_dim": metadata.head_dim,
        "max_position_embeddings": metadata.need("context_length"),
        "tie_word_embeddings": not metadata.has("output.weight"),
        "rope_parameters": _rope(metadata),
        eps: metadata.need(f"attention.{stored_eps}"),
    }


def _rope(metadata: Metadata) -> dict[str, Any]:
    kind = metadata.get("rope.scaling.type", "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 10000.0)}
    factor = metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear", 1.0))
    if kind in {"none", "longrope"} and (kind == "longrope" or factor == 1.0):  # longrope: Phi-3 has tensors of factors
        return rope
    if kind not in {"none", "linear", "yarn"}:
        raise UnsupportedModelError(f"rotary embeddings of GGUF's scaling type {kind!r} are not supported")
    rope |= {"rope_type": "yarn" if kind == "yarn" else "linear", "factor": factor}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = metadata.get(
            "rope.scaling.original_context_length", metadata.get("context_length")
        )
    return rope


def _partial_rotation(metadata: Metadata) -> dict[str, float]:
    """Return the part of a head that turns, where it is not all of it."""
    head_dim, turning = metadata.head_dim, metadata.get("rope.dimension_count")
    is_part = head_dim and type(turning) is int and turning < head_dim
    return {"partial_rotary_factor": turning / head_dim} if is_part else {}


def llama(metadata: Metadata) -> dict[str, Any]:
    """Llama, and Mistral, whose files name the same architecture."""
    return common(metadata, "llama") | {
        "hidden_act": "silu",
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_down.bias"),
    }


def mixtral(metadata: Metadata) -> dict[str, Any]:
    """Mixtral, whose files name Llama's architecture."""
    return common(metadata, "mixtral") | {
        "hidden_act": "silu",
        "sliding_window": None,
        "num_local_experts": metadata.need("expert_count"),
        "num_experts_per_tok": metadata.need("expert_used_count"),
    }


def internlm2(metadata: Metadata) -> dict[str, Any]:
    """InternLM2 and 2.5."""
    return common(metadata, "internlm2") | {"hidden_act": "silu", "bias": metadata.has("blk.0.attn_q.bias")}


def qwen2(metadata: Metadata) -> dict[str, Any]:
    """Qwen2 and 2.5."""
    return common(metadata, "qwen2") | {"hidden_act": "silu", "use_sliding_window": False}


def _qwen_experts(metadata: Metadata, *, normalizes: bool) -> dict[str, Any]:
    """Return what Qwen's mixtures have; all layers have experts. Sizes that metadata lack are those of tensors."""
    first = metadata.tensors.get("blk.0.ffn_up_exps.weight")
    return {
        "hidden_act": "silu",
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_experts": metadata.need("expert_count"),
        "num_experts_per_tok": metadata.need("expert_used_count"),
        "moe_intermediate_size": metadata.get("expert_feed_forward_length", first.shape[1] if first else None),
        "norm_topk_prob": normalizes,
    }


def qwen2moe(metadata: Metadata) -> dict[str, Any]:
    """Qwen1.5-MoE and Qwen2-MoE: weights of chosen experts are left as they are."""
    shared = metadata.tensors.get("blk.0.ffn_up_shexp.weight")
    own = {
        "qkv_bias": metadata.has("blk.0.attn_q.bias"),
        "shared_expert_intermediate_size": metadata.get(
            "expert_shared_feed_forward_length", shared.shape[0] if shared else None
        ),
    }
    return common(metadata, "qwen2_moe") | _qwen_experts(metadata, normalizes=False) | own


def qwen3moe(metadata: Metadata) -> dict[str, Any]:
    """Qwen3-MoE: weights of chosen experts sum to one."""
    own = {"attention_bias": metadata.has("blk.0.attn_q.bias")}
    return common(metadata, "qwen3_moe") | _qwen_experts(metadata, normalizes=True) | own


def qwen3(metadata: Metadata) -> dict[str, Any]:
    """Qwen3."""
    has_bias = metadata.has("blk.0.attn_q.bias")
    return common(metadata, "qwen3") | {
        "hidden_act": "silu",
        "use_sliding_window": False,
        "attention_bias": has_bias,
    }


def gemma(metadata: Metadata) -> dict[str, Any]:
    """Gemma 1."""
    return common(metadata, "gemma") | {"hidden_act": "gelu_pytorch_tanh", "attention_bias": False}


def _gemma_scale(metadata: Metadata, layers_of_27b: int) -> Any:
    """Return the size whose root scores are divided by: of the 27B models it is not that of a head."""
    hidden, heads = metadata.get("embedding_length"), metadata.get("attention.head_count")
    if metadata.get("block_count") == layers_of_27b and type(hidden) is int and type(heads) is int and heads > 0:
        return hidden / heads
    return metadata.head_dim


def gemma2(metadata: Metadata) -> dict[str, Any]:
    """Gemma 2: every other layer has a window, the first one among them."""
    layers = metadata.get("block_count", 0)
    return common(metadata, "gemma2") | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": _gemma_scale(metadata, 46),
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.get("final_logit_softcapping", 30.0),
        "sliding_window": metadata.get("attention.sliding_window", 4096),
        "layer_types": [_FULL if layer % 2 else _SLIDING for layer in range(layers)],
    }


def gemma3(metadata: Metadata) -> dict[str, Any]:
    """Gemma 3 (text): every sixth layer sees everything, the others turn with a base of 10,000 and have a window."""
    layers = metadata.get("block_count", 0)
    period = metadata.get("attention.sliding_window_pattern", 6)
    fields = common(metadata, "gemma3_text")
    whole = fields["rope_parameters"]
    if metadata.get("rope.freq_base") is None:
        whole["rope_theta"] = 1e6
    local = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", 10000.0)}
    return fields | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": _gemma_scale(metadata, 62),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "sliding_window": metadata.get("attention.sliding_window", 1024),
        "layer_types": [_SLIDING if (layer + 1) % period else _FULL for layer in range(layers)],
        "rope_parameters": {_FULL: whole, _SLIDING: local},
    }


def phi3(metadata: Metadata) -> dict[str, Any]:
    """Phi-3, 3.5 and 4: a part of a head turns in some, and longrope's factors are tensors."""
    fields = common(metadata, "phi3")
    rope = fields["rope_parameters"] | _partial_rotation(metadata)
    fields["rope_parameters"] = rope
    longer, shorter = (metadata.numbers.get(f"rope_factors_{length}.weight") for length in ("long", "short"))
    if longer and shorter:
        trained = metadata.get("rope.scaling.original_context_length", metadata.get("context_length"))
        rope |= {
            "rope_type": "longrope",
            "long_factor": longer,
            "short_factor": shorter,
            "original_max_position_embeddings": trained,
        }
        fields["original_max_position_embeddings"] = trained
    return fields | {
        "hidden_act": "silu",
        "sliding_window": metadata.get("attention.sliding_window") or None,
        "pad_token_id": metadata.values.get("tokenizer.ggml.padding_token_id"),
    }


def falcon(metadata: Metadata) -> dict[str, Any]:
    """Falcon 7B, 11B, 40B: which it is, the number of key/value heads and norms show."""
    fields = common(metadata, "falcon", "layer_norm_epsilon")
    del fields["head_dim"]  # the hidden size's share
    kv_heads = fields["num_key_value_heads"]
    is_new = kv_heads != 1
    return fields | {
        "ffn_hidden_size": metadata.get("feed_forward_length"),
        "activation": "gelu",
        "new_decoder_architecture": is_new,
        "num_kv_heads": kv_heads,
        "num_ln_in_parallel_attn": 2 if metadata.has("blk.0.attn_norm_2.weight") else 1,
        "multi_query": not is_new,
        "parallel_attn": True,
        "bias": metadata.has("blk.0.attn_qkv.bias"),
        "alibi": False,
    }


def starcoder2(metadata: Metadata) -> dict[str, Any]:
    """StarCoder2."""
    return common(metadata, "starcoder2", "norm_epsilon") | {
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": metadata.has("blk.0.attn_q.bias"),
        "sliding_window": metadata.get("attention.sliding_window"),
    }


def olmo2(metadata: Metadata) -> dict[str, Any]:
    """OLMo 2; files of OLMo 3 name the same architecture, and a window."""
    if metadata.get("attention.sliding_window"):
        raise UnsupportedModelError("GGUF files of OLMo 3 are not read: take the model as safetensors")
    return common(metadata, "olmo2") | {"hidden_act": "silu", "attention_bias": metadata.has("blk.0.attn_q.bias")}


def exaone4(metadata: Metadata) -> dict[str, Any]:
    """EXAONE 4 1.2B, whose layers all see and rotate everything."""
    if metadata.get("attention.sliding_window"):
        raise UnsupportedModelError("GGUF files of EXAONE 4 with windows are not read: take the model as safetensors")
    layers = metadata.get("block_count", 0)
    return common(metadata, "exaone4") | {
        "hidden_act": "silu",
        "sliding_window": None,
        "layer_types": [_FULL] * layers,
    }


def seed_oss(metadata: Metadata) -> dict[str, Any]:
    """Seed-OSS."""
    return common(metadata, "seed_oss") | {
        "hidden_act": "silu",
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "attention_out_bias": metadata.has("blk.0.attn_output.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_down.bias"),
    }


def ernie4_5(metadata: Metadata) -> dict[str, Any]:
    """ERNIE 4.5 without experts."""
    return common(metadata, "ernie4_5") | {"hidden_act": "silu", "use_bias": metadata.has("blk.0.attn_q.bias")}


def command_r(metadata: Metadata) -> dict[str, Any]:
    """Command R and R+."""
    return common(metadata, "cohere", "layer_norm_eps") | {
        "hidden_act": "silu",
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "use_qk_norm": metadata.has("blk.0.attn_q_norm.weight"),
        "logit_scale": metadata.need("logit_scale"),
    }


def phi2(metadata: Metadata) -> dict[str, Any]:
    """Phi-1, 1.5 and 2."""
    fields = common(metadata, "phi", "layer_norm_eps")
    fields["rope_parameters"] |= _partial_rotation(metadata)
    return fields | {"hidden_act": "gelu_new", "qk_layernorm": False}


def stablelm(metadata: Metadata) -> dict[str, Any]:
    """StableLM."""
    fields = common(metadata, "stablelm", "layer_norm_eps")
    fields["rope_parameters"] |= _partial_rotation(metadata)
    return fields | {
        "hidden_act": "silu",
        "use_qkv_bias": metadata.has("blk.0.attn_q.bias"),
        "qk_layernorm": metadata.has("blk.0.attn_q_norm.weight"),
        "use_parallel_residual": not metadata.has("blk.0.ffn_norm.weight"),
    }
