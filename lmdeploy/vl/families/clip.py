"""CLIP towers that a checkpoint names instead of describing."""

from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.paths import locate_model

_PUBLISHED = {"openai/clip-vit-large-patch14-336": 336, "openai/clip-vit-large-patch14": 224}  # CLIP-L, by side


def tower_folder(checkpoint: Path, named: object, *, is_here: bool) -> Path | None:
    """Return the folder of the tower that a config names; of OpenAI's CLIP, which is fetched, also by its name.

    Raises `ValueError` if it names none, and `UnsupportedModelError` if the tower cannot be fetched. ``checkpoint``,
    ``named``, ``is_here``: as for `tower_config`.
    """
    if not isinstance(named, str) or not named:
        raise ValueError(f"config.json must name the tower, got {named!r}")
    folder = next((path for path in (checkpoint / named, Path(named).expanduser()) if path.is_dir()), None)
    if folder is not None or is_here or named not in _PUBLISHED:
        return folder
    try:
        return locate_model(named)
    except CheckpointError as error:
        reason = " ".join(str(error).split())
        raise UnsupportedModelError(f"{_elsewhere(checkpoint, named)} ({reason})") from error


def tower_config(checkpoint: Path, named: str, *, is_here: bool) -> Any:
    """Return the ``CLIPVisionConfig`` of the tower with a name.

    Raises `UnsupportedModelError` if the tower is neither here nor in a folder, or is of another kind. ``checkpoint``,
    ``named``: the folder of the whole model, and what it calls its tower. ``is_here``: whether the checkpoint has the
    tower's tensors.
    """
    from transformers import AutoConfig, CLIPVisionConfig, LlavaConfig

    folder = tower_folder(checkpoint, named, is_here=is_here)
    if folder is not None:
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        vision = getattr(whole, "vision_config", whole)
    elif is_here and named in _PUBLISHED:
        vision = LlavaConfig().vision_config  # CLIP-L
        vision.image_size = _PUBLISHED[named]
    else:
        raise UnsupportedModelError(_elsewhere(checkpoint, named))
    if not isinstance(vision, CLIPVisionConfig):
        raise UnsupportedModelError(f"{folder}: the tower must be CLIP's, got {vision.model_type}")
    return vision


def _elsewhere(checkpoint: Path, named: str) -> str:
    return (
        f"{checkpoint}: the tower is in another repository, {named}; name a folder with a copy of that in config.json, "
        "or use the model as converted for transformers (llava-hf/...)"
    )
