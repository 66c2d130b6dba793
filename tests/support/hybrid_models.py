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
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        GATED_DELTA | EXPERTS | {"mlp_only_layers": [1], "norm_topk_prob": True, "tie_word_embeddings": False},
    ),
    "Qwen3.5": ("Qwen3_5ForCausalLM", GATED_DELTA),
    "Qwen3.5 with experts": ("Qwen3_5MoeForCausalLM", GATED_DELTA | EXPERTS),
}
