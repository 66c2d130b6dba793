"""Shapes of well-known models, as fields of their ``config.json``, for measurements without a real model.

Weights are random wherever one is written: by :mod:`tools.bench.random_model` with ``transformers``, as a GGUF file
(:mod:`tools.bench.random_gguf`), and within a second (:mod:`tools.bench.checkpoints`). Mixtures of experts have
fewer layers than their originals, so that they load in seconds and fit into little memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_NAMES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)


@dataclass(frozen=True)
class Shape:
    """A model."""

    # Of ``config.json``
    architecture: str
    config: dict[str, Any]
    weights: str = "bfloat16"  # ``bfloat16``, ``awq`` or ``fp8`` (a scale an output)

    @property
    def head_dim(self) -> int:
        """Of queries and keys of plain attention."""
        found: int = self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"]
        return found

    @property
    def experts(self) -> int:
        """How many a layer has; 0: none."""
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        return next((self.config[name] for name in names if name in self.config), 0)

    @property
    def expert_size(self) -> int:
        """Features between an expert's matrices."""
        found: int = self.config.get("moe_intermediate_size") or self.config["intermediate_size"]
        return found

    @property
    def has_head_norms(self) -> bool:
        """Whether queries and keys are normalized, head by head."""
        return "Qwen3" in self.architecture

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight in the layers; of AWQ with a scale of 16 bits and a zero point of 4 for 128 weights."""
        return {"bfloat16": 2.0, "awq": (4 + 20 / 128) / 8, "fp8": 1.0}[self.weights]

    def having(self, **fields: Any) -> Shape:
        """Return the shape with other fields, of those that it has."""
        return replace(self, config=self.config | {name: fields[name] for name in fields if name in self.config})


def _shape(architecture: str, *sizes: int, **more: Any) -> Shape:
    return Shape(architecture, dict(zip(_NAMES, sizes, strict=True)) | more)


_LLAMA_8B = _shape("LlamaForCausalLM", 128256, 4096, 14336, 32, 32, 8, 16384, tie_word_embeddings=False)
_QWEN3_MOE = _shape(
    *("Qwen3MoeForCausalLM", 151936, 2048, 6144, 48, 32, 4, 40960),
    head_dim=128,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    norm_topk_prob=True,
    rope_theta=1e6,
)
SHAPES = {
    "tiny": _shape("LlamaForCausalLM", 300, 32, 64, 2, 4, 2, 16384, tie_word_embeddings=False),
    "llama-3.2-1b": _shape(
        *("LlamaForCausalLM", 128256, 2048, 8192, 16, 32, 8, 131072),
        head_dim=64,
        tie_word_embeddings=True,
        rope_theta=500000.0,
    ),
    "llama-8b": _LLAMA_8B,
    "awq-8b": replace(_LLAMA_8B, weights="awq"),
    "fp8-8b": replace(_LLAMA_8B, weights="fp8"),
    "qwen3-4b": _shape(
        *("Qwen3ForCausalLM", 151936, 2560, 9728, 36, 32, 8, 40960),
        head_dim=128,
        tie_word_embeddings=True,
        rope_theta=1e6,
    ),
    # With a smaller vocabulary than the real one's 248,320 tokens.
    "qwen3.5-0.8b": _shape(
        *("Qwen3_5ForCausalLM", 32000, 1024, 3584, 24, 8, 2, 32768),
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        tie_word_embeddings=True,
    ),
    "qwen3-moe": _QWEN3_MOE.having(num_hidden_layers=12),
    "qwen3-30b-a3b": _QWEN3_MOE.having(num_hidden_layers=8),
    "mixtral": _shape(
        *("MixtralForCausalLM", 32000, 4096, 14336, 6, 32, 8, 16384),
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
    ),
    "deepseek": _shape(
        *("DeepseekV2ForCausalLM", 102400, 2048, 10944, 12, 16, 16, 16384),
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        moe_intermediate_size=1408,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        first_k_dense_replace=1,
        moe_layer_freq=1,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
        routed_scaling_factor=1.0,
        scoring_func="softmax",
    ),
}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}


def tiny(shape: Shape) -> Shape:
    """Return a shape with everything small, for the emulation."""
    return shape.having(**_TINY)
