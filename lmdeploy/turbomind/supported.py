"""Documented settings this engine cannot honour yet. They are refused, never ignored; support deletes a line."""

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig


def refuse_unsupported_engine(config: TurbomindEngineConfig | PytorchEngineConfig) -> None:
    """Raise ``ValueError`` for an engine, or a setting of one, that is not supported yet."""
    if isinstance(config, PytorchEngineConfig):
        raise ValueError("PytorchEngineConfig: the pytorch engine is not supported yet; use TurbomindEngineConfig")
    if config.model_format == "meta_llama":
        raise ValueError("model_format='meta_llama' is not supported yet; leave it out")
