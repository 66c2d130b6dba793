"""ChatGLM and GLM-4, whose configuration has names of its own."""

from __future__ import annotations

from typing import Any

from lmdeploy.pytorch.config import ModelConfig
from lmdeploy.pytorch.configurations.builder import AutoModelConfigBuilder


class ChatGLMModelConfigBuilder(AutoModelConfigBuilder):
    """For ``model_type`` chatglm."""

    @classmethod
    def condition(cls, hf_config: Any) -> bool:
        """Return whether this builder is for the configuration."""
        return bool(hf_config.model_type == "chatglm")

    @classmethod
    def build(cls, hf_config: Any, model_path: str | None = None) -> ModelConfig:
        """Return the configuration."""
        heads = hf_config.num_attention_heads
        has_groups = getattr(hf_config, "multi_query_attention", False)
        return ModelConfig(
            hidden_size=hf_config.hidden_size,
            num_layers=hf_config.num_layers,
            num_attention_heads=heads,
            num_key_value_heads=hf_config.multi_query_group_num if has_groups else heads,
            bos_token_id=hf_config.bos_token_id,
            eos_token_id=hf_config.eos_token_id,
            head_dim=hf_config.kv_channels,
            vocab_size=hf_config.padded_vocab_size,
        )
