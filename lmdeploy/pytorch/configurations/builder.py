"""What all builders have in common, and how one is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
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

        Raises
        ------
        ValueError
            If fields are missing, or are invalid.
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
