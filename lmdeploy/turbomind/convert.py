"""`lmdeploy convert`: from a checkpoint to a Triton model repository that serves it, without copying weights."""

import json
import shutil
from pathlib import Path

from lmdeploy.errors import CheckpointError
from lmdeploy.model import MODELS, ChatTemplateConfig, chat_template_for, name_for_older_clients
from lmdeploy.paths import locate_model, model_name_of, workspace_engine_dir
from lmdeploy.scratch import Scratch
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.checkpoint_files import move_in
from lmdeploy.turbomind.engine_dir import write_engine_dir
from lmdeploy.turbomind.quantized import check_model_format, weight_format
from lmdeploy.turbomind.repository import copy_models, is_workspace
from lmdeploy.turbomind.rewritten import readable_checkpoint


def convert(
    # A Hugging Face directory, or the name of a Hugging Face repository. The weights stay there, unless ``copy``
    model_path: str,
    # Folder to write. One written by an earlier conversion is replaced; any other must be empty or missing
    dst_path: str | Path = "workspace",
    *,
    model_name: str | None = None,  # name shown to clients; default: the directory's name
    # As ``chat_template_for`` takes it; a JSON file's content is stored. Default: chosen for the model
    chat_template: str | None = None,
    # As in ``TurbomindEngineConfig``
    dtype: str = "auto",
    model_format: str | None = None,
    tp: int = 1,
    copy: bool = False,  # copy the weights into ``dst_path``, which then serves on any machine it is moved to
) -> Path:
    """Write a model repository for a checkpoint; it appears complete or not at all.

    Raises `UnsupportedModelError` or `CheckpointError` as ``lmdeploy.turbomind.engine_dir.resolve``, `ValueError` if
    the chat template is unknown or malformed, or ``model_format`` is not the checkpoint's, and `FileExistsError` if
    ``dst_path`` holds something else.

    Returns
    -------
    Path
        The absolute ``dst_path``.
    """
    source = locate_model(model_path)
    if (source / "spec.json").is_file() or is_workspace(source):
        raise CheckpointError(source, ["is converted already; convert the original checkpoint"])
    target = Path(dst_path).expanduser().absolute()
    if target.exists() and not is_workspace(target) and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is no workspace of lmdeploy convert: choose another --dst-path")
    if any(character.isspace() for character in str(target)):
        raise ValueError(f"Triton's Python backend reads no model in a path with spaces, got --dst-path {target}")
    if model_format is not None:
        check_model_format(model_format, weight_format(read_config(readable_checkpoint(source))))
    name = model_name or model_name_of(source)
    template = _stored_template(model_path, chat_template)
    target.parent.mkdir(parents=True, exist_ok=True)
    with Scratch(target.parent, f".{target.name}-") as scratch:
        made = scratch / "workspace"
        engine = write_engine_dir(source, name, workspace_engine_dir(made))
        if copy:
            move_in(readable_checkpoint(source), engine.path)
        parameters = {
            "preprocessing": {"model_path": "../../turbomind/1", "chat_template": template},
            "vision": {"model_path": "../../turbomind/1"},
            "postprocessing": {"model_path": "../../turbomind/1"},
            "turbomind": {
                "model_path": ".",
                "model_name": name_for_older_clients(model_name, str(engine.path), template),
                "served_model_name": name,
                "engine_config": json.dumps({"dtype": dtype, "tp": tp}),
            },
        }
        copy_models(made, parameters)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    return target


def _stored_template(model_path: str, chat_template: str | None) -> str:
    """Return the stored form of a template, its name or its JSON text, after making it once."""
    if not chat_template:
        return ""
    chat_template_for(model_path, chat_template)
    return chat_template if chat_template in MODELS else ChatTemplateConfig.from_json(chat_template).to_json()
