"""Offline inference: prompts in, responses out, in this process and over the engine that Triton hosts."""

import logging
from typing import Any, Literal

from lmdeploy.messages import (
    GenerationConfig,
    PytorchEngineConfig,
    TurbomindEngineConfig,
    VisionConfig,
    require_vision_config,
)
from lmdeploy.model import ChatTemplateConfig
from lmdeploy.model_metadata.sampling_defaults import AUTO
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.turbomind.engine_settings import backend_of, engine_config_for


def pipeline(
    model_path: str = "",
    backend_config: TurbomindEngineConfig | PytorchEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | None = None,
    log_level: str = "WARNING",
    max_log_len: int | None = None,
    *,
    model_name: str | None = None,
    backend: Literal["turbomind", "pytorch"] | None = None,
    vision_config: VisionConfig | None = None,
    generation_config: str = AUTO,
    gen_config: GenerationConfig | None = None,
    **fields: Any,
) -> AsyncEngine:
    """Load a model for offline inference.

    Parameters
    ----------
    model_path
        A Hugging Face directory, a workspace of ``lmdeploy convert``, the name of a Hugging Face repository, or ``""``
        for the default model.
    backend_config
        Engine settings; default: ``TurbomindEngineConfig()``, or, for a model that the TurboMind engine does not know,
        what they mean for the PyTorch engine.
    chat_template_config
        Replaces the model's own chat template.
    log_level
        Level of the ``lmdeploy`` logger.
    max_log_len
        Most characters of a prompt shown in the log; None: all.
    model_name
        The name shown to users; default: that of the checkpoint's folder.
    backend
        The engine; default: as ``backend_config`` says, else ``turbomind`` if it knows the model, and ``pytorch`` if
        not.
    vision_config
        How a vision-language model processes images.
    generation_config
        Where sampling requests take the parameters from that they do not set: ``auto``, the checkpoint's
        ``generation_config.json``; ``none``, the defaults of ``GenerationConfig``; or a folder with such a file.
    gen_config
        How to generate where a call does not say; default: ``GenerationConfig()``.
    fields
        Fields of ``TurbomindEngineConfig`` by name, as older releases took them (``instance_num`` for
        ``max_batch_size``); one that ``backend_config`` says otherwise is refused.

    Returns
    -------
    AsyncEngine
        Call it with a prompt, or a list of prompts.

    Raises
    ------
    ValueError
        If the checkpoint cannot be used or a setting is bad, or not supported.
    TypeError
        If there is no such setting.
    """
    require_vision_config(vision_config)
    config = engine_config_for(backend_config, backend, fields)
    logging.getLogger("lmdeploy").setLevel(log_level.upper())
    chosen = backend if backend_config is None else backend_of(config)  # fields by name alone leave the choice open
    return AsyncEngine(
        model_path,
        config,
        chat_template_config,
        max_log_len,
        model_name,
        chosen or "auto",
        generation_config,
        gen_config,
    )
