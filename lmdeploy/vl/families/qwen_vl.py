"""Qwen-VL: images in one size, a fixed number of rows between marks, numbered from 1."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart
from lmdeploy.vl.families.square import Squarer
from lmdeploy.vl.tensors import seeing_tensors

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _END = "<imgpad>", "<img>", "</img>"
_OWN = "transformer.visual."
_QUERIES = 256  # where config.json does not say


def config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with the tower's sizes, the width of the rows and their number."""
    from transformers import LlavaConfig

    said = checkpoint[1]["visual"]
    return LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": said["width"],
            "image_size": said["image_size"],
            "intermediate_size": int(said["width"] * said["mlp_ratio"]),
            "num_attention_heads": said["heads"],
            "num_hidden_layers": said["layers"],
            "patch_size": said["patch_size"],
        },
        text_config={"model_type": "llama", "hidden_size": said["output_dim"], "num_attention_heads": 1},
        image_seq_length=int(said.get("n_queries", _QUERIES)),
    )


def processor(checkpoint: Checkpoint) -> Squarer:
    """Return what makes images square."""
    return Squarer(int(checkpoint[1]["visual"]["image_size"]))


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors by the names of :class:`lmdeploy.vl.qwen_vl_tower.QwenVlTower`."""
    for name, values in seeing_tensors(checkpoint[0]):
        yield name.removeprefix(_OWN).removeprefix("transformer."), values


def model(config: Any) -> type:
    """Return the class of the tower."""
    from lmdeploy.vl.qwen_vl_tower import QwenVlTower

    return QwenVlTower


def number(part: VisionPart, place: int, options: Options) -> str:
    """Return what the model calls an image."""
    return f"Image {place + 1}: "


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens between their marks."""
    return f"{_BEGIN}{_TOKEN * part.config.image_seq_length}{_END}"


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows."""
    rows: torch.Tensor = part.model(part.processor.pixels(image))
    return rows


FAMILY = VisionFamily(
    ("QWenLMHeadModel",),
    _TOKEN,
    expansion,
    features,
    words=(_BEGIN, _END),
    native=NativeForm(config, processor, tensors, model),
    number=number,
)
