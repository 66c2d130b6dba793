"""Models with experts or latent attention: architecture and sizes of tiny checkpoints that ``transformers`` makes."""

from typing import Any

from tests.support.tiny_models import LLAMA3_ROPE

EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.8,
    "mscale_all_dim": 1.2,
}
PHI_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
    "short_mscale": 1.3,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 128,
}
SHARED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
    "routed_scaling_factor": 1.7,
}
DEEPSEEK = LATENT | SHARED
# Enough index heads that no two tokens have the score 0.
INDEXED = DEEPSEEK | {"index_topk": 12, "index_n_heads": 16, "index_head_dim": 16}
TWO_GROUPS = {"n_group": 4, "topk_group": 2}
DEEPSEEK_MOE = QWEN_EXPERTS | {
    "qkv_bias": False,
    "shared_expert_intermediate_size": 48,
    "num_hidden_layers": 3,
    "mlp_only_layers": [0],
}
HALF_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.5, "logits_scaling": 4.0}
GPT_OSS = EXPERTS | {"head_dim": 16, "sliding_window": 20}
LLAMA4 = {
    "num_local_experts": 6,
    "num_experts_per_tok": 1,
    "head_dim": 16,
    "intermediate_size": 24,
    "intermediate_size_mlp": 40,
    "num_hidden_layers": 4,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 32,
    "floor_scale": 12,
    "attn_scale": 0.7,
}
ROPES_BY_KIND = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": YARN}
ONE_DENSE = QWEN_EXPERTS | {"head_dim": 16, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"]}
WINDOWED = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Mixtral": ("MixtralForCausalLM", EXPERTS | {"sliding_window": None}),
    "Qwen2-MoE": (
        "Qwen2MoeForCausalLM",
        QWEN_EXPERTS
        | {
            "shared_expert_intermediate_size": 40,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
    ),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", QWEN_EXPERTS | {"norm_topk_prob": True, "head_dim": 16}),
    "Phi-3.5-MoE": (
        "PhimoeForCausalLM",
        EXPERTS
        | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.2, "tie_word_embeddings": False},
    ),
    "Phi-3.5-MoE with longrope": ("PhimoeForCausalLM", EXPERTS | {"rope_parameters": PHI_ROPE}),
    "DBRX": (
        "DbrxForCausalLM",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.7, "rope_theta": 10000.0},
            "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 24, "moe_num_experts": 5, "moe_top_k": 2},
            "tie_word_embeddings": False,
        },
    ),
    "GPT-OSS": ("GptOssForCausalLM", GPT_OSS),
    "Llama 4": ("Llama4ForCausalLM", LLAMA4 | {"interleave_moe_layer_step": 2}),
    "Llama 4 without experts": ("Llama4ForCausalLM", LLAMA4 | {"moe_layers": [], "attention_bias": True}),
    "Llama 4 without norms and tuning": (
        "Llama4ForCausalLM",
        LLAMA4 | {"use_qk_norm": False, "attn_temperature_tuning": False, "rope_parameters": LLAMA3_ROPE},
    ),
    "DeepSeek-V2-Lite": ("DeepseekV2ForCausalLM", DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy"}),
    "DeepSeek-V2": (
        "DeepseekV2ForCausalLM",
        DEEPSEEK | {"topk_method": "group_limited_greedy", "rope_parameters": YARN} | TWO_GROUPS,
    ),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", DEEPSEEK | {"rope_parameters": YARN} | TWO_GROUPS),
    "DeepSeek-V3.2": ("DeepseekV32ForCausalLM", INDEXED | TWO_GROUPS | {"rope_parameters": YARN}),
    "GLM-5": (
        "GlmMoeDsaForCausalLM",
        INDEXED | {"n_group": 1, "topk_group": 1, "indexer_types": ["full", "shared", "full"]},
    ),
    "HY4": (
        "HYV4ForCausalLM",
        INDEXED
        | {
            "n_group": 1,
            "topk_group": 1,
            "hc_mult": 3,
            "pad_token_id": 0,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "indexer_types": ["full", "shared", "full"],
        },
    ),
    "DeepSeek-V4": (
        "DeepseekV4ForCausalLM",
        {
            "num_hidden_layers": 4,
            "layer_types": [
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 24},
            "num_key_value_heads": 1,
            "head_dim": 32,
            "qk_rope_head_dim": 8,
            "sliding_window": 20,
            "q_lora_rank": 20,
            "o_groups": 2,
            "o_lora_rank": 12,
            "index_topk": 3,
            "index_n_heads": 16,
            "index_head_dim": 16,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "num_hash_layers": 1,
            "hc_mult": 3,
            "rope_parameters": YARN | {"attention_factor": 1.0},
            "pad_token_id": 0,
        },
    ),
    "OLMoE": ("OlmoeForCausalLM", QWEN_EXPERTS | {"intermediate_size": 24, "pad_token_id": 0}),
    "ERNIE 4.5 with experts": (
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "num_hidden_layers": 3,
        },
    ),
    "GLM-4.5": (
        "Glm4MoeForCausalLM",
        SHARED | TWO_GROUPS | {"attention_bias": True, "use_qk_norm": True, "head_dim": 16},
    ),
    "GLM-4.7-Flash": ("Glm4MoeLiteForCausalLM", DEEPSEEK | TWO_GROUPS),
    "dots.llm1": ("Dots1ForCausalLM", SHARED | TWO_GROUPS | {"norm_topk_prob": True, "head_dim": 16}),
    "MiniMax-M2": ("MiniMaxM2ForCausalLM", EXPERTS | {"head_dim": 16, "rope_parameters": HALF_ROPE}),
    "MiniMax-M3": (
        "MiniMaxM3VLForCausalLM",
        EXPERTS
        | {
            "head_dim": 16,
            "rope_parameters": HALF_ROPE,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "intermediate_size": 24,
            "dense_intermediate_size": 40,
            "shared_intermediate_size": 48,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 8,
            "index_topk_blocks": 3,
        },
    ),
    "Granite MoE": ("GraniteMoeForCausalLM", EXPERTS | GRANITE),
    "Granite MoE with a shared expert": (
        "GraniteMoeSharedForCausalLM",
        EXPERTS | GRANITE | {"shared_intermediate_size": 40},
    ),
    "Hunyuan A13B": (
        "HunYuanMoEV1ForCausalLM",
        {"num_experts": 6, "moe_topk": 2, "head_dim": 16, "attention_bias": True, "intermediate_size": 40},
    ),
    "Mistral Small 4": (
        "Mistral4ForCausalLM",
        DEEPSEEK | TWO_GROUPS | {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.5}},
    ),
    "HY3": ("HYV3ForCausalLM", ONE_DENSE),
    "Solar Open": (
        "SolarOpenForCausalLM",
        TWO_GROUPS
        | {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "attention_bias": True},
    ),
    "Trinity": (
        "AfmoeForCausalLM",
        {k: v for k, v in ONE_DENSE.items() if k != "mlp_layer_types"} | WINDOWED | {"mup_enabled": True},
    ),
    "K-EXAONE": ("ExaoneMoeForCausalLM", ONE_DENSE | WINDOWED | {"n_group": 3, "topk_group": 2}),
    "Mellum 2": ("MellumForCausalLM", ONE_DENSE | WINDOWED | {"rope_parameters": ROPES_BY_KIND}),
    "Flint": (
        "FlintForCausalLM",
        {k: v for k, v in ONE_DENSE.items() if k != "mlp_layer_types"}
        | WINDOWED
        | {"mlp_only_layers": [0], "shared_expert_intermediate_size": 40},
    ),
    "Cohere2 with experts": (
        "Cohere2MoeForCausalLM",
        ONE_DENSE
        | {
            "num_shared_experts": 1,
            "prefix_dense_intermediate_size": 40,
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "pad_token_id": 0,
        },
    ),
    "Cohere2 with experts and RMSNorm": (
        "Cohere2MoeForCausalLM",
        ONE_DENSE
        | WINDOWED
        | {"num_shared_experts": 2, "shared_expert_combination_strategy": "sum"}
        | {"expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-5, "pad_token_id": 0},
    ),
    "Granite SWA with experts": (
        "GraniteMoeSWAForCausalLM",
        EXPERTS
        | GRANITE
        | WINDOWED
        | {"shared_intermediate_size": 40, "num_hidden_layers": 3, "layer_rope_theta": [10000.0, 0, 500.0]},
    ),
    "FlexOlmo": ("FlexOlmoForCausalLM", QWEN_EXPERTS | {"intermediate_size": 24, "pad_token_id": 0}),
    "Youtu-LLM": ("YoutuForCausalLM", LATENT | {"initializer_range": 0.3}),
    "MiniCPM3": ("MiniCPM3ForCausalLM", LATENT | {"rms_norm_eps": 1e-2, "dim_model_base": 16}),
}
