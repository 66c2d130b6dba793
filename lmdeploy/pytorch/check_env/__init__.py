"""Checks before a model is started."""

from __future__ import annotations

from pathlib import Path

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.pytorch.config import ModelConfig
from lmdeploy.pytorch.configurations import AutoModelConfigBuilder
from lmdeploy.pytorch.models.hf_config import read_hf_config
from lmdeploy.pytorch.models.patch import CustomModuleMap, model_class_for, read_module_map
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.quantized import weight_format_of_workers

_TYPES = ("auto", "float32", "float16", "bfloat16")


def check_model(model_path: str | Path, dtype: str = "auto", custom_module_map: CustomModuleMap = None) -> ModelConfig:
    """Check that a model's configuration can be read, and that a class runs it; no weights are loaded.

    Parameters
    ----------
    model_path
        A Hugging Face directory.
    dtype
        Type the weights would be loaded in.
    custom_module_map
        As ``PytorchEngineConfig`` has it.

    Returns
    -------
    ModelConfig
        What the engine would work with.

    Raises
    ------
    CheckpointError
        If config.json is missing or is invalid.
    UnsupportedModelError
        If the model cannot run, with the reason.
    ValueError
        If another argument is invalid.
    """
    if dtype not in _TYPES:
        raise ValueError(f"dtype must be one of {', '.join(_TYPES)}, got {dtype!r}")
    custom = read_module_map(custom_module_map)
    path = Path(model_path)
    hf_config = read_hf_config(path)
    try:
        config = AutoModelConfigBuilder.build(hf_config, str(path))
    except ValueError as error:
        raise CheckpointError(path, [str(error)]) from error
    weight_format_of_workers(read_config(path))
    if model_class_for(hf_config, custom) is None and type(hf_config).model_type != hf_config.model_type:
        names = ", ".join(hf_config.architectures or [str(hf_config.model_type)])
        raise UnsupportedModelError(
            f"{path}: neither MODULE_MAP nor transformers has a class for {names}; name one in custom_module_map"
        )
    return config
