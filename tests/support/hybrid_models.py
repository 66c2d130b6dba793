"""Tiny models whose layers keep a state in place of keys and values, by name: architecture, fields of its config."""

from pathlib import Path
from typing import Any

from tests.support import published
from tests.support.tiny_models import make_tiny

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
KIMI: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "moe_intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.5,
    "mlp_multipliers": [0.7, 1.3],
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.8,
    "ssm_multipliers": [0.7, 0.9, 1.2, 1.1, 1.4],
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.9,
}
FALCON_H1: dict[str, Any] = MULTIPLIERS | {
    "head_dim": 8,
    "mamba_d_ssm": 48,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 16,
}
NEMOTRON_H: dict[str, Any] = {
    "head_dim": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "tie_word_embeddings": False,
}
MINIMAX: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 4,
    "block_size": 16,
} | {f"{half}_alpha_factor": 1.7 for half in ("full_attn", "linear_attn", "mlp")}
SCAN: dict[str, Any] = {"state_size": 4, "time_step_rank": 6, "num_hidden_layers": 2}
JAMBA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 8,
    "mamba_dt_rank": 6,
    "num_experts": 1,
    "tie_word_embeddings": False,
}
QWEN4: dict[str, Any] = (
    GATED_DELTA
    | EXPERTS
    | {
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        "eos_token_id": 466,  # of the tests' prompts: n-grams end there
        "hc_count": 3,
        "hc_lowrank": 12,
        "ple_layer_ids": [1, 3],
        "ple_embed_dim": 32,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50,
        "split_ngram_parts": 3,
        "indexer_n_heads": 3,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 20,
        "indexer_budget": 12,
        "indexer_compress_ratio": 4,
    }
)
ZAMBA2: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layers_block_type": ["linear_attention", *["hybrid"] * 3, "linear_attention", "hybrid"],
    "initializer_range": 0.1,  # nothing is added to what a block makes: rounding grows with larger weights
    "num_mem_blocks": 2,
    "adapter_rank": 4,
    "n_mamba_heads": 4,
    "mamba_d_state": 16,
    "mamba_ngroups": 2,
    "chunk_size": 16,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        GATED_DELTA | EXPERTS | {"mlp_only_layers": [1], "norm_topk_prob": True, "tie_word_embeddings": False},
    ),
    "Qwen3.5": ("Qwen3_5ForCausalLM", GATED_DELTA),
    "Qwen3.5 with experts": ("Qwen3_5MoeForCausalLM", GATED_DELTA | EXPERTS),
    "Qwen 4": ("Qwen4ExpForCausalLM", QWEN4 | {"output_gate_type": "sigmoid"}),
    "Qwen 4 without n-grams": ("Qwen4ExpForCausalLM", QWEN4 | {"ple_layer_ids": [], "hc_count": 2}),
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
    "LFM3": (
        "Lfm3ForCausalLM",
        {
            "head_dim": 8,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "sliding_attention"],
            "sliding_window": 24,
            "pad_token_id": 0,
        },
    ),
    "Bamba": (
        "BambaForCausalLM",
        {k: v for k, v in MAMBA.items() if k != "layer_types"} | {"attn_layer_indices": [1], "mamba_proj_bias": True},
    ),
    "Kimi Linear": ("KimiLinearForCausalLM", KIMI),
    "Ling 3.0": (
        "BailingHybridForCausalLM",
        {k: v for k, v in KIMI.items() if not k.startswith("linear_")}
        | {"head_dim": 16, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
    ),
    "GLM-5-Next": (
        "Glm5NextForConditionalGeneration",
        {
            "text_config": KIMI
            | {
                "vocab_size": 2048,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_attention_heads": 4,
                "max_position_embeddings": 512,
                "initializer_range": 0.3,
                "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
                "mlp_layer_types": ["dense", *["sparse"] * 3],
                "qk_rope_head_dim": 0,
                "q_lora_rank": 24,
                "index_topk": 16,
                "index_kpool": 4,
                "index_n_heads": 8,  # with few, some pools score 0 by all of them: ties
                "index_head_dim": 12,
                "hc_mult": 3,
                "hc_sinkhorn_iters": 4,
            },
            "tie_word_embeddings": False,
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 32,
                "depth": 1,
                "num_heads": 2,
                "out_hidden_size": 32,
                "projection_intermediate_size": 32,
            },
        },
    ),
    "RecurrentGemma": (
        "RecurrentGemmaForCausalLM",
        {
            "num_hidden_layers": 3,
            "block_types": ["recurrent", "attention"],
            "attention_window_size": 24,
            "lru_width": 48,
            "pad_token_id": 0,
        },
    ),
    "Falcon-H1": ("FalconH1ForCausalLM", FALCON_H1),
    "Falcon-H1 with norms": ("FalconH1ForCausalLM", FALCON_H1 | {"mamba_rms_norm": True}),
    "Nemotron-H": (
        "NemotronHForCausalLM",
        NEMOTRON_H | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ),
    "Nemotron 3": (
        "NemotronHForCausalLM",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 4,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
        },
    ),
    "Nemotron 3 Super": (
        "NemotronHForCausalLM",
        NEMOTRON_H
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 4,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 24,
            "moe_latent_size": 32,
        },
    ),
    "MiniMax-Text-01": ("MiniMaxForCausalLM", MINIMAX),
    "OLMo Hybrid": (
        "OlmoHybridForCausalLM",
        {"pad_token_id": 0} | {k: v for k, v in GATED_DELTA.items() if k != "head_dim"},
    ),
    "Zamba2": ("Zamba2ForCausalLM", ZAMBA2),
    "Zamba2 with further adapters": (
        "Zamba2ForCausalLM",
        ZAMBA2
        | {"use_shared_attention_adapter": True, "use_mem_rope": True, "num_key_value_heads": 4}
        | {"add_bias_linear": True, "num_mem_blocks": 1},
    ),
    "Mamba2": (
        "Mamba2ForCausalLM",
        {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2, "chunk_size": 16, "num_hidden_layers": 2},
    ),
    "Mamba": ("MambaForCausalLM", SCAN),
    "Falcon Mamba": ("FalconMambaForCausalLM", SCAN | {"use_bias": True}),
    "Jamba": ("JambaForCausalLM", JAMBA),
    "Jamba with experts": ("JambaForCausalLM", JAMBA | {"num_experts": 4, "mamba_proj_bias": True}),
}
PUBLISHERS = {"Kimi Linear": published.kimi_linear, "OLMo Hybrid": published.olmo_hybrid}
PUBLISHERS |= {"HY4": published.hy4, "Ling 3.0": published.ling3, "MiniMax-M3": published.minimax_m3}
PUBLISHERS["DeepSeek-V4"] = published.deepseek_v4


def make_hybrid(directory: Path, name: str, **changes: Any) -> Path:
    """Make one of them, as published; ``changes`` are further fields of its config."""
    architecture, overrides = MODELS[name]
    make_tiny(directory, architecture, **overrides | changes)
    PUBLISHERS.get(name, published.as_is)(directory)
    return directory
