"""Offline inference: prompts in, responses out, in this process and over the engine that Triton hosts."""

import logging

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.model import ChatTemplateConfig
from lmdeploy.offline.async_engine import AsyncEngine


def pipeline(
    model_path: str = "",
    backend_config: TurbomindEngineConfig | PytorchEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | None = None,
    log_level: str = "WARNING",
    max_log_len: int | None = None,
) -> AsyncEngine:
    """Load a model for offline inference.

    Parameters
    ----------
    model_path
        A Hugging Face directory, a workspace of ``lmdeploy convert``, the name of a Hugging Face repository, or ``""``
        for the default model.
    backend_config
        Engine settings; default: ``TurbomindEngineConfig()``.
    chat_template_config
        Replaces the model's own chat template.
    log_level
        Level of the ``lmdeploy`` logger.
    max_log_len
        Most characters of a prompt shown in the log; None: all.

    Returns
    -------
    AsyncEngine
        Call it with a prompt, or a list of prompts.

    Raises
    ------
    ValueError
        If the checkpoint cannot be used or a setting is bad.
    """
    logging.getLogger("lmdeploy").setLevel(log_level.upper())
    return AsyncEngine(model_path, backend_config, chat_template_config, max_log_len)
