"""Resolution of a requested model to the settings of its tritonserver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.extras import require
from lmdeploy.model_metadata.task_adapters import task_adapters
from lmdeploy.paths import locate_model, located_adapters
from lmdeploy.pytorch.settings import require_valid_settings
from lmdeploy.turbomind.engine_dir import EngineDir, resolve
from lmdeploy.turbomind.repository import stored_parameters


@dataclass(frozen=True)
class ResolvedModel:
    """A model that an engine can load."""

    engine: EngineDir  # its engine directory
    name: str  # what it is called where nobody says otherwise
    chat_template: str  # as asked for, or stored with it; empty: its own
    # Of the engine: those asked for, in front of those stored with it; adapters are named by directories
    settings: dict[str, Any]


def resolved_model(path: str, backend: str, chat_template: str, settings: Mapping[str, Any]) -> ResolvedModel:
    """Return a model that can be loaded, described where it was not yet.

    Raises `ValueError` or `OSError` if there is no such model or adapter, the engine cannot run it, or not with these
    settings, and `MissingExtraError` if it takes packages that are not installed. ``path``: as in
    `lmdeploy.turbomind.engine_dir.resolve`. ``backend``: ``pytorch``, or ``turbomind``, in whose place PyTorch runs
    what it cannot. ``chat_template``: as asked for; empty: the one stored with the model, or its own. ``settings``: of
    the engine, by name.
    """
    directory = locate_model(path, settings.get("revision"), settings.get("download_dir"))
    stored = stored_parameters(directory)
    together = {**stored.engine_config, **settings}
    require_valid_settings(together)
    if together.get("cache_dir"):
        together["cache_dir"] = str(Path(together["cache_dir"]).expanduser().absolute())
    engine = resolve(
        directory,
        backend="pytorch" if backend == "pytorch" else None,
        custom_module_map=together.get("custom_module_map") or "",
    )
    if adapters := task_adapters(engine.path) | located_adapters(together.get("adapters")):
        together["adapters"] = adapters
    if engine.vision_checkpoint is not None:
        require("vision", f"{directory}, a vision-language model,")
    name = stored.model_name or engine.spec.model_name
    return ResolvedModel(engine, name, chat_template or stored.chat_template, together)
