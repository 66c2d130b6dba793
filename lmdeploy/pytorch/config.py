"""Model description, independent of the names in its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class ModelConfig:
    """Sizes of a model."""

    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    # Tokens that begin and end a text
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    head_dim: int
    sliding_window: int = -1  # -1: none in all layers
    vocab_size: int = 0
    # Of the cache; ``head_dim`` by default
    k_head_dim: int | None = None
    v_head_dim: int | None = None
    hf_config: Any = None  # the configuration that this was built from

    def __post_init__(self) -> None:
        self.k_head_dim = self.k_head_dim or self.head_dim
        self.v_head_dim = self.v_head_dim or self.head_dim
        sizes = ("hidden_size", "num_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
        for name in sizes:
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"ModelConfig.{name} must be a whole number >= 1, got {getattr(self, name)!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads must be a multiple of num_key_value_heads, got {self.num_attention_heads} and "
                f"{self.num_key_value_heads}"
            )
