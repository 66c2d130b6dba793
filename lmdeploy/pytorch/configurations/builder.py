"""Base class and choice of configuration builders."""

from __future__ import annotations

from typing import Any, ClassVar

from lmdeploy.pytorch.config import ModelConfig


class AutoModelConfigBuilder:
    """Builds the configuration that the engine works with; subclasses do it for the models they know.

    A subclass is known from its definition on. Of those whose ``condition`` holds the one defined last is taken: one
    of the user's own comes before ours.
    """

    _builders: ClassVar[list[type[AutoModelConfigBuilder]]] = []

    def __init_subclass__(cls, is_last: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        AutoModelConfigBuilder._builders.insert(0 if is_last else len(AutoModelConfigBuilder._builders), cls)

    @classmethod
    def condition(cls, hf_config: Any) -> bool:
        """Return whether this builder is for the configuration."""
        raise NotImplementedError(f"{cls.__name__} needs a class method condition(hf_config)")

    @classmethod
    def build(cls, hf_config: Any, model_path: str | None = None) -> ModelConfig:
        """Return the configuration, by the builder that takes it.

        Raises `ValueError` if fields are missing, or are invalid.
        """
        for builder in reversed(cls._builders):
            if not builder.condition(hf_config):
                continue
            if vars(builder).get("build") is None:
                raise ValueError(f"{builder.__name__} needs a class method build(hf_config, model_path)")
            try:
                config = builder.build(hf_config, model_path)
            except (AttributeError, KeyError, TypeError) as error:
                raise ValueError(f"{builder.__name__} cannot read the configuration: {error}") from error
            config.hf_config = hf_config
            return config
        raise ValueError(f"no builder takes a configuration of type {type(hf_config).__name__}")


class DefaultModelConfigBuilder(AutoModelConfigBuilder, is_last=True):
    """Reads the names that most configurations have, for models that no other builder takes."""

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
