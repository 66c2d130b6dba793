"""LLaVA 1.5 and 1.6 and Yi-VL in their authors' own layout: a Llama or Mistral with tensors and settings of a tower.

The tokenizer has no token for images, so that the one for what is unknown stands for them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.turbomind.rewritten import readable_checkpoint
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families import llava, llava_next
from lmdeploy.vl.families.clip import tower_config, tower_folder
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart
from lmdeploy.vl.tensors import seeing_tensors

if TYPE_CHECKING:
    import torch

_TOKEN = "<unk>"
_TOWER = "model.vision_tower.vision_tower."
_NAMES = (
    (_TOWER, "vision_tower."),
    ("model.image_newline", "image_newline"),
)
# Of the projector, by its kind.
_PROJECTORS = {
    "mlp2x_gelu": (
        ("model.mm_projector.0.", "multi_modal_projector.linear_1."),
        ("model.mm_projector.2.", "multi_modal_projector.linear_2."),
    ),
    "mlp2x_gelu_Norm": (
        ("model.mm_projector.0.", "multi_modal_projector.linear_1."),
        ("model.mm_projector.1.", "multi_modal_projector.norm_1."),
        ("model.mm_projector.3.", "multi_modal_projector.linear_2."),
        ("model.mm_projector.4.", "multi_modal_projector.norm_2."),
    ),
}


def config(checkpoint: Checkpoint) -> Any:
    """Return the ``LlavaNextConfig`` where images are cut into tiles, else the ``LlavaConfig``."""
    from transformers import LlavaConfig, LlavaNextConfig

    _, raw = checkpoint
    fields = {
        "vision_config": _tower(checkpoint).to_dict(),
        "text_config": {"model_type": "llama", "hidden_size": raw["hidden_size"], "num_attention_heads": 1},
        "vision_feature_layer": raw.get("mm_vision_select_layer", -2),
        "vision_feature_select_strategy": {"patch": "default", "cls_patch": "full"}[
            raw.get("mm_vision_select_feature", "patch")
        ],
    }
    if not _has_tiles(checkpoint):
        normed = raw["mm_projector_type"].endswith("_Norm")
        return LlavaConfig(architectures=["LlavaForConditionalGeneration"], projector_is_normed=normed, **fields)
    return LlavaNextConfig(
        architectures=["LlavaNextForConditionalGeneration"], image_grid_pinpoints=_canvases(checkpoint), **fields
    )


def processor(checkpoint: Checkpoint) -> Any:
    """Return what makes images square, or cuts them into tiles, as config.json says."""
    from transformers import LlavaImageProcessorPil, LlavaNextImageProcessorPil

    side = _tower(checkpoint).image_size
    sizes = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    if _has_tiles(checkpoint):
        return LlavaNextImageProcessorPil(image_grid_pinpoints=_canvases(checkpoint), **sizes)
    return LlavaImageProcessorPil(do_pad=checkpoint[1].get("image_aspect_ratio") == "pad", **sizes)


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors by their native names, those of the tower from its own folder if they are not here."""
    for name, values in seeing_tensors(checkpoint[0]):
        for own, native in (*_NAMES, *_PROJECTORS[checkpoint[1]["mm_projector_type"]]):
            name = name.replace(own, native)
        yield name, values
    is_here = _brings_tower(checkpoint)
    folder = tower_folder(checkpoint[0], checkpoint[1]["mm_vision_tower"], is_here=is_here)
    if folder is not None and not is_here:
        for name, values in seeing_tensors(readable_checkpoint(folder)):
            if name.startswith("vision_model."):
                yield f"vision_tower.{name}", values


def model(config: Any) -> type:
    """Return the class of the tower and projector."""
    import transformers

    if getattr(config, "projector_is_normed", False):
        from lmdeploy.vl.normed_llava import NormedLlava

        return NormedLlava
    found: type = getattr(transformers, config.architectures[0])
    return found


def _has_tiles(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint[1].get("image_aspect_ratio") == "anyres")


def _canvases(checkpoint: Checkpoint) -> list[list[int]]:
    """Return height and width of each; config.json has the width first."""
    return [[height, width] for width, height in checkpoint[1]["image_grid_pinpoints"]]


def _brings_tower(checkpoint: Checkpoint) -> bool:
    return any(name.startswith(_TOWER) for name in read_checkpoint(checkpoint[0]).tensors)


def _tower(checkpoint: Checkpoint) -> Any:
    """Return the config of the tower."""
    folder, raw = checkpoint
    return tower_config(folder, raw["mm_vision_tower"], is_here=_brings_tower(checkpoint))


def _form(part: VisionPart) -> VisionFamily:
    return llava_next.FAMILY if part.config.model_type == "llava_next" else llava.FAMILY


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens."""
    form = _form(part)
    return form.expansion(part, size, options).replace(form.token, _TOKEN)


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows."""
    return _form(part).features(part, image, options)


FAMILY = VisionFamily(
    ("LlavaLlamaForCausalLM", "LlavaMistralForCausalLM"),
    _TOKEN,
    expansion,
    features,
    native=NativeForm(config, processor, tensors, model),
)
