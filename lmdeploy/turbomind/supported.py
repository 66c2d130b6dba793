"""Documented settings this engine cannot honour yet. They are refused, never ignored; support deletes a line."""

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig

_ENGINE = ("tp",)


def refuse_unsupported_engine(config: TurbomindEngineConfig | PytorchEngineConfig) -> None:
    """Raise ``ValueError`` naming every engine setting that is not at its default and not supported yet."""
    if isinstance(config, PytorchEngineConfig):
        raise ValueError("PytorchEngineConfig: the pytorch engine is not supported yet; use TurbomindEngineConfig")
    if config.model_format == "meta_llama":
        raise ValueError("model_format='meta_llama' is not supported yet; use 'hf', 'awq' or 'gptq'")
    _refuse(config, TurbomindEngineConfig(), _ENGINE)


def _refuse(given: object, default: object, names: tuple[str, ...]) -> None:
    problems = []
    for name in names:
        value, normal = getattr(given, name), getattr(default, name)
        # An empty list asks for nothing, like None.
        if value != normal and not (normal is None and value == []):
            problems.append(f"{name}={value!r} is not supported yet; leave it at {normal!r}")
    if problems:
        raise ValueError("; ".join(problems))
