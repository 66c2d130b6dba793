"""Tiny models whose layers differ in sizes, by name: architecture, fields of its config."""

from typing import Any

from tests.support.tiny_models import LLAMA3_ROPE

GEMMA4: dict[str, Any] = {
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_hidden_layers": 6,
    "final_logit_softcapping": 6.0,
    "pad_token_id": 0,
}
LLAMA3_SCALING = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
LAGUNA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "num_attention_heads_per_layer": [4, 8, 4],
    "num_key_value_heads": 2,
    "sliding_window": 24,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "moe_routed_scaling_factor": 1.7,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma 3n": (
        "Gemma3nForCausalLM",
        {
            "head_dim": 8,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_hidden_layers": 6,
            "intermediate_size": [64, 64, 96, 96, 64, 64],
            "activation_sparsity_pattern": [0.95, 0.8, 0.0, 0.0, 0.0, 0.0],
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 600,
            "num_kv_shared_layers": 2,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "laurel_rank": 6,
            "final_logit_softcapping": 6.0,
            "pad_token_id": 0,
        },
    ),
    "Gemma 4 E2B": (
        "Gemma4ForCausalLM",
        GEMMA4 | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
    ),
    "Gemma 4 31B": (
        "Gemma4ForCausalLM",
        GEMMA4 | {"hidden_size_per_layer_input": 0, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    ),
    "Gemma 4 12B": ("Gemma4UnifiedForCausalLM", GEMMA4 | {"num_global_key_value_heads": 1, "attention_k_eq_v": True}),
    "Gemma 4 26B": (
        "Gemma4ForCausalLM",
        GEMMA4
        | {
            "hidden_size_per_layer_input": 0,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    "Laguna": ("LagunaForCausalLM", LAGUNA),
    "Laguna M": ("LagunaForCausalLM", LAGUNA | {"gating": "per-element"}),
    "Muse Glimmer": (
        "MuseGlimmerForConditionalGeneration",
        {
            "text_config": {
                "vocab_size": 1024,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
                "layer_rope_theta": [10000.0, 10000.0, 0],
                "initializer_range": 0.3,
            },
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
            "out_hidden_size": 64,
            "projector_hidden_size": 32,
        },
    ),
    "Step 3.7": (
        "Step3p7ForConditionalGeneration",
        {
            "text_config": {
                "vocab_size": 1024,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "attention_other_setting": {"num_attention_heads": 8},
                "num_key_value_heads": 2,
                "head_dim": 16,
                "max_position_embeddings": 512,
                "sliding_window": 24,
                "layer_types": ["full_attention", *["sliding_attention"] * 3],
                "rope_theta": [10000.0, 500.0, 500.0, 500.0],
                "rope_scaling": LLAMA3_SCALING,
                "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0],
                "moe_layers_enum": "1,2,3",
                "n_routed_experts": 8,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 24,
                "share_expert_dim": 40,
                "moe_router_scaling_factor": 1.7,
                "swiglu_limits": [0.0, 0.0, 7.0, 7.0],
                "swiglu_limits_shared": [0.0, 0.0, 0.0, 16.0],
                "initializer_range": 1.0,
            },
            "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
            "tie_word_embeddings": False,
        },
    ),
    "MiMo-V2-Flash": (
        "MiMoV2FlashForCausalLM",
        {
            "num_hidden_layers": 3,
            "head_dim": 24,
            "v_head_dim": 16,
            "num_key_value_heads": 1,
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "attention_value_scale": 0.7,
            "tie_word_embeddings": False,
        },
    ),
}
