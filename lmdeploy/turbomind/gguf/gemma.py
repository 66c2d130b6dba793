"""Gemma 3n and 4 in GGUF files: configs, and tensors that no other architecture has."""

from statistics import NormalDist
from typing import Any

from lmdeploy.turbomind.families.experts import moe_of
from lmdeploy.turbomind.gguf.configs import FULL, SLIDING, common, padding, windows
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.gguf.mixtures import joined_experts
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import ModelSpec

# Names of published checkpoints, and GGUF's.
NAMES = (
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ("model.layers.", "blk."),
    ("post_per_layer_input_norm", "post_norm"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("pre_feedforward_layernorm", "pre_ffw_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("altup.router_norm", "altup_router_norm"),
    ("altup.modality_router", "altup_router"),
    ("altup.prediction_coefs", "altup_predict_coef"),
    ("altup.correction_coefs", "altup_correct_coef"),
    ("altup.correct_output_scale", "altup_correct_scale.weight"),
    ("laurel.linear_left", "laurel_l"),
    ("laurel.linear_right", "laurel_r"),
    ("laurel.post_laurel_norm", "laurel_post_norm"),
)


def gemma4_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer, once each is a tensor of its own (`stacks.apart`)."""
    return joined_experts(spec, prefix) | {
        "moe.router_norm.weight": Load(f"{prefix}ffn_gate_inp.scale", (spec.hidden_size,)),
        "moe.router.scales": Load(f"{prefix}ffn_down_exps.scale", (moe_of(spec).num_experts,)),
    }


def _gemma(metadata: Metadata, model_type: str, period: int) -> dict[str, Any]:
    fields = common(metadata, model_type)
    return fields | {
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "sliding_window": metadata.need("attention.sliding_window"),
        "layer_types": windows(period)(metadata),
        "hidden_size_per_layer_input": metadata.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": fields["vocab_size"],
        "pad_token_id": padding(metadata),
        "rope_parameters": {
            FULL: fields["rope_parameters"],
            SLIDING: {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", 10000.0)},
        },
    }


def gemma3n_config(metadata: Metadata) -> dict[str, Any]:
    """Gemma 3n (text)."""
    layers, cuts = metadata.layer_count or 0, metadata.get("activation_sparsity_scale", [])
    sizes = metadata.need("feed_forward_length")
    rank = metadata.tensors.get("blk.0.laurel_l.weight")
    return _gemma(metadata, "gemma3n_text", 5) | {
        "intermediate_size": sizes if isinstance(sizes, list) else [sizes] * layers,
        # The file has quantiles of the normal distribution, -inf where nothing is cut.
        "activation_sparsity_pattern": [NormalDist().cdf(cut) for cut in cuts[:layers]] or None,
        "num_kv_shared_layers": metadata.get("attention.shared_kv_layers", 0),
        "altup_num_inputs": metadata.get("altup.num_inputs", 4),
        "altup_active_idx": metadata.get("altup.active_idx", 0),
        "altup_correct_scale": True,
        "laurel_rank": rank.shape[0] if rank else None,
        "final_logit_softcapping": metadata.get("final_logit_softcapping", 30.0),
    }


def _of_kind(values: Any, kinds: list[str], kind: str) -> Any:
    """Return the value of the layers of a kind, of a number for all layers or one for each."""
    if not isinstance(values, list):
        return values
    return next((value for value, name in zip(values, kinds, strict=False) if name == kind), values[0])


def gemma4_config(metadata: Metadata) -> dict[str, Any]:
    """Gemma 4 (text): layers with a window and those without have heads of other sizes and numbers."""
    fields = _gemma(metadata, "gemma4_text", 6)
    kinds, layers = fields["layer_types"], metadata.layer_count or 0
    sizes, counts = metadata.need("feed_forward_length"), metadata.need("attention.head_count_kv")
    first = next((layer for layer, kind in enumerate(kinds) if kind == FULL), 0)
    factors = metadata.numbers.get("rope_freqs.weight", [1.0])
    fields["rope_parameters"][FULL] |= {
        "rope_type": "proportional",
        "partial_rotary_factor": sum(factor == 1 for factor in factors) / len(factors),
    }
    fields |= {
        "head_dim": metadata.need("attention.key_length_swa"),
        "global_head_dim": metadata.need("attention.key_length"),
        "num_key_value_heads": _of_kind(counts, kinds, SLIDING),
        "num_global_key_value_heads": _of_kind(counts, kinds, FULL),
        "attention_k_eq_v": not metadata.has(f"blk.{first}.attn_v.weight"),
        "num_kv_shared_layers": metadata.get("attention.shared_kv_layers", 0),
        "intermediate_size": sizes[0] if isinstance(sizes, list) else sizes,
        "use_double_wide_mlp": isinstance(sizes, list) and sizes[0] < sizes[layers - 1],
    }
    if experts := metadata.get("expert_count"):
        fields |= {
            "enable_moe_block": True,
            "num_experts": experts,
            "top_k_experts": metadata.need("expert_used_count"),
            "moe_intermediate_size": metadata.need("expert_feed_forward_length"),
        }
    return fields
