"""GLM-4V 9B: images in one size, at one position of the text, between a vector that begins and one that ends them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart
from lmdeploy.vl.families.square import Squarer
from lmdeploy.vl.tensors import seeing_tensors

if TYPE_CHECKING:
    import torch

# The tokenizer has marks, and nothing for what is between them.
_TOKEN, _END = "<|begin_of_image|>", "<|end_of_image|>"
_OWN = "transformer.vision."


def config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with the tower's sizes, those of the rows, and what these are divided by."""
    raw = checkpoint[1]
    return eva_clip(raw, raw["ffn_hidden_size"], scaling_factor=float(raw["vision_config"]["scaling_factor"]))


def eva_clip(raw: Mapping[str, Any], projected: int, **more: Any) -> Any:
    """Return a ``LlavaConfig`` of a tower of EVA-CLIP.

    Parameters
    ----------
    raw
        The checkpoint's config.
    projected
        Hidden numbers of the MLP that makes rows.
    more
        Further fields.
    """
    from transformers import LlavaConfig

    said = raw["vision_config"]
    names = ("hidden_size", "image_size", "intermediate_size", "num_hidden_layers", "patch_size", "layer_norm_eps")
    return LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "num_attention_heads": said["num_heads"],
            "hidden_act": said["hidden_act"],
            **{name: said[name] for name in names},
        },
        text_config={
            "model_type": "llama",
            "hidden_size": raw["hidden_size"],
            "intermediate_size": projected,
            "num_attention_heads": 1,
        },
        **more,
    )


def processor(checkpoint: Checkpoint) -> Squarer:
    """Return what makes images square."""
    return Squarer(int(checkpoint[1]["vision_config"]["image_size"]))


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors by the names of :class:`lmdeploy.vl.glm_4v_tower.Glm4vTower`."""
    for name, values in seeing_tensors(checkpoint[0]):
        yield name.removeprefix(_OWN).removeprefix("transformer."), values


def model(config: Any) -> type:
    """Return the class of the tower."""
    from lmdeploy.vl.glm_4v_tower import Glm4vTower

    return Glm4vTower


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: one for four patches, and two for the ends."""
    vision = part.config.vision_config
    rows: int = (vision.image_size // vision.patch_size // 2) ** 2 + 2
    return _TOKEN * rows


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows."""
    rows: torch.Tensor = part.model(part.processor.pixels(image))
    return rows


FAMILY = VisionFamily(
    ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    _TOKEN,
    expansion,
    features,
    words=(_END,),
    native=NativeForm(config, processor, tensors, model),
    is_one_place=True,
)
