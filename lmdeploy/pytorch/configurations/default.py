"""Configurations in the names that most have."""

from __future__ import annotations

from typing import Any

from lmdeploy.pytorch.config import ModelConfig
from lmdeploy.pytorch.configurations.builder import AutoModelConfigBuilder


class DefaultModelConfigBuilder(AutoModelConfigBuilder, is_last=True):
    """For what no other builder takes."""

    @classmethod
    def condition(cls, hf_config: Any) -> bool:
        """Return True."""
        return True

    @classmethod
    def build(cls, hf_config: Any, model_path: str | None = None) -> ModelConfig:
        """Return the configuration."""
        heads = hf_config.num_attention_heads
        return ModelConfig(
            hidden_size=hf_config.hidden_size,
            num_layers=hf_config.num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=getattr(hf_config, "num_key_value_heads", None) or heads,
            bos_token_id=getattr(hf_config, "bos_token_id", None),
            eos_token_id=getattr(hf_config, "eos_token_id", None),
            head_dim=getattr(hf_config, "head_dim", None) or hf_config.hidden_size // heads,
            sliding_window=getattr(hf_config, "sliding_window", None) or -1,
            vocab_size=hf_config.vocab_size,
        )
