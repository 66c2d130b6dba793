"""CLIP towers that a checkpoint names instead of describing."""

from pathlib import Path
from typing import Any

from lmdeploy.errors import UnsupportedModelError

_PUBLISHED = {"openai/clip-vit-large-patch14-336": 336, "openai/clip-vit-large-patch14": 224}  # CLIP-L, by side


def tower_folder(checkpoint: Path, named: object) -> Path | None:
    """Return the folder that a config names as the tower's, if it is one of this machine's.

    Raises
    ------
    ValueError
        If it names none.
    """
    if not isinstance(named, str) or not named:
        raise ValueError(f"config.json must name the tower, got {named!r}")
    return next((place for place in (checkpoint / named, Path(named).expanduser()) if place.is_dir()), None)


def tower_config(checkpoint: Path, named: str, *, is_here: bool) -> Any:
    """Return the ``CLIPVisionConfig`` of the tower with a name.

    Parameters
    ----------
    checkpoint, named
        The folder of the whole model, and what it calls its tower.
    is_here
        Whether the checkpoint has the tower's tensors.

    Raises
    ------
    UnsupportedModelError
        If the tower is neither here nor in a folder, or is of another kind.
    """
    from transformers import AutoConfig, CLIPVisionConfig, LlavaConfig

    folder = tower_folder(checkpoint, named)
    if folder is not None:
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        vision = getattr(whole, "vision_config", whole)
    elif is_here and named in _PUBLISHED:
        vision = LlavaConfig().vision_config  # CLIP-L
        vision.image_size = _PUBLISHED[named]
    else:
        raise UnsupportedModelError(
            f"{checkpoint}: the tower is in another repository, {named}; name a folder with a copy of that in "
            "config.json, or use the model as converted for transformers (llava-hf/...)"
        )
    if not isinstance(vision, CLIPVisionConfig):
        raise UnsupportedModelError(f"{folder}: the tower must be CLIP's, got {vision.model_type}")
    return vision
