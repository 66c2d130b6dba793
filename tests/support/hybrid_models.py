"""Tiny models whose layers keep a state in place of keys and values, by name: architecture, fields of its config."""

from typing import Any

GATED_DELTA: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 32,
}
MAMBA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
FACTORS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
    "shared_intermediate_size": 48,
}
CONVOLUTIONS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        GATED_DELTA | EXPERTS | {"mlp_only_layers": [1], "norm_topk_prob": True, "tie_word_embeddings": False},
    ),
    "Qwen3.5": ("Qwen3_5ForCausalLM", GATED_DELTA),
    "Qwen3.5 with experts": ("Qwen3_5MoeForCausalLM", GATED_DELTA | EXPERTS),
    "Granite 4": ("GraniteMoeHybridForCausalLM", MAMBA | FACTORS | {"num_local_experts": 0}),
    "Granite 4 with experts": (
        "GraniteMoeHybridForCausalLM",
        MAMBA | FACTORS | {"num_local_experts": 4, "position_embedding_type": "rope", "mamba_proj_bias": True},
    ),
    "Granite 4 without Mamba": (
        "GraniteMoeHybridForCausalLM",
        MAMBA | FACTORS | {"layer_types": ["full_attention"] * 3, "num_local_experts": 4},
    ),
    "LFM2": ("Lfm2ForCausalLM", CONVOLUTIONS | {"block_multiple_of": 16, "conv_bias": True}),
    "LFM2 with experts": (
        "Lfm2MoeForCausalLM",
        CONVOLUTIONS | {"num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "Mamba2": (
        "Mamba2ForCausalLM",
        {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2, "chunk_size": 16, "num_hidden_layers": 2},
    ),
}
