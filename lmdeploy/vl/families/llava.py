"""LLaVA as ``transformers`` and as its authors publish it, LLaVA-NeXT and LLaVA-OneVision."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.turbomind.rewritten import readable_checkpoint
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families.clip import tower_config, tower_folder
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VideoForm, VisionFamily, VisionPart, rows_of
from lmdeploy.vl.tensors import seeing_tensors
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch


# LLaVA 1.5 and what was built like it: one size of image, one row a patch.
_LLAVA_TOKEN = "<image>"


def rows_of_tower(part: VisionPart) -> int:
    """Return how many rows a tower for one size gives."""
    vision = part.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    has_summary = vision.model_type == "clip_vision_model"
    return int(patches + has_summary - (part.config.vision_feature_select_strategy == "default"))


LLAVA = VisionFamily(
    ("LlavaForConditionalGeneration",), _LLAVA_TOKEN, lambda part, size, options: _LLAVA_TOKEN * rows_of_tower(part)
)


# LLaVA 1.6 (NeXT): a small view of the whole image, then tiles of the canvas that fits it best, a newline a row.
_LLAVA_NEXT_TOKEN = "<image>"


def unpadded(part: VisionPart, size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of patches that an image has of the canvas that fits it best."""
    from transformers.image_processing_utils import select_best_resolution

    width, height = size
    tile = int(part.config.vision_config.image_size)
    patches = tile // int(part.config.vision_config.patch_size)
    canvas_height, canvas_width = select_best_resolution((height, width), part.config.image_grid_pinpoints)
    rows, columns = patches * (int(canvas_height) // tile), patches * (int(canvas_width) // tile)
    # The image fills the canvas one way; what is left the other way is padding, the same on both sides.
    if width / height > columns / rows:
        rows -= 2 * ((rows - int(round(height * (columns / width), 7))) // 2)
    else:
        columns -= 2 * ((columns - int(round(width * (rows / height), 7))) // 2)
    return rows, columns


def llava_next_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of the whole image, and of the canvas less its padding, with a newline each row."""
    rows, columns = unpadded(part, size)
    return _LLAVA_NEXT_TOKEN * (rows_of_tower(part) + rows * columns + rows)


LLAVA_NEXT = VisionFamily(("LlavaNextForConditionalGeneration",), _LLAVA_NEXT_TOKEN, llava_next_expansion)


# LLaVA-OneVision: as LLaVA 1.6 with a bound on the rows of one image, and a single view of each of several.
_LLAVA_ONEVISION_TOKEN, _VIDEO = "<image>", "<video>"
_SHRUNK_ABOVE = 1.1  # times the side that the most tiles have


def llava_onevision_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of the whole image, then either one newline or those of the canvas, shrunk if too many."""
    whole = rows_of_tower(part)
    if options.get("several"):
        return _LLAVA_ONEVISION_TOKEN * (whole + 1)
    rows, columns = unpadded(part, size)
    max_tiles = int(part.config.vision_aspect_ratio.rpartition("_")[2])  # anyres_max_9
    patches = part.config.vision_config.image_size // part.config.vision_config.patch_size
    ratio = math.sqrt(rows * columns / (max_tiles * patches**2))
    if ratio > _SHRUNK_ABOVE:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return _LLAVA_ONEVISION_TOKEN * (whole + rows * columns + rows)


def llava_onevision_features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows, newlines included."""
    count = 2 if options.get("several") else 1  # the processor makes single views of two or more
    inputs = part.processor(images=[[image] * count], return_tensors="pt")
    rows: torch.Tensor = part.model.get_image_features(
        pixel_values=inputs["pixel_values"][:1].to(part.model.dtype),
        image_sizes=inputs["image_sizes"][:1],
        batch_num_images=inputs["batch_num_images"],
    ).pooler_output[0]
    return rows


def video_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of all frames, a quarter of a view's each, and of one newline."""
    vision = part.config.vision_config
    side: int = math.ceil(vision.image_size // vision.patch_size / 2)
    return _VIDEO * (len(times_of(options)) * side**2 + 1)


def video_features(part: VisionPart, stacked: Image, options: Options) -> "torch.Tensor":
    """Return the rows, the newline included."""
    import torch

    side = part.config.vision_config.image_size
    frames = frames_in(stacked, len(times_of(options)))
    seen = [part.processor(images=[[one]], image_grid_pinpoints=[[side, side]], return_tensors="pt") for one in frames]
    views = [one["pixel_values"][0, :1] for one in seen]  # the whole comes first
    # By place: the name differs between versions of transformers.
    pooled = part.model.get_video_features(torch.stack(views, dim=1).to(part.model.dtype)).pooler_output
    return rows_of(pooled)


LLAVA_ONEVISION = VisionFamily(
    ("LlavaOnevisionForConditionalGeneration",),
    _LLAVA_ONEVISION_TOKEN,
    llava_onevision_expansion,
    llava_onevision_features,
    minds_others=True,
    video=VideoForm(_VIDEO, video_expansion, video_features, written=f"{_VIDEO}\n"),
)


# LLaVA 1.5 and 1.6 and Yi-VL in their authors' own layout: a Llama or Mistral with tensors and settings of a tower.
#
# The tokenizer has no token for images, so that the one for what is unknown stands for them.
_LLAVA_ORIGINAL_TOKEN = "<unk>"
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


def llava_original_config(checkpoint: Checkpoint) -> Any:
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
        is_normed = raw["mm_projector_type"].endswith("_Norm")
        name = "lmdeploy.vl.normed_llava:NormedLlava" if is_normed else "LlavaForConditionalGeneration"
        return LlavaConfig(architectures=[name], **fields)
    return LlavaNextConfig(
        architectures=["LlavaNextForConditionalGeneration"], image_grid_pinpoints=_canvases(checkpoint), **fields
    )


def processor(checkpoint: Checkpoint) -> Any:
    """Return the image processor that makes images square, or cuts them into tiles, as config.json says."""
    from transformers import LlavaImageProcessorPil, LlavaNextImageProcessorPil

    side = _tower(checkpoint).image_size
    sizes = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    if _has_tiles(checkpoint):
        return LlavaNextImageProcessorPil(image_grid_pinpoints=_canvases(checkpoint), **sizes)
    return LlavaImageProcessorPil(do_pad=checkpoint[1].get("image_aspect_ratio") == "pad", **sizes)


def llava_original_tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors by their native names, those of the tower from its own folder if they are not here."""
    for name, values in seeing_tensors(checkpoint[0]):
        for stored, native in (*_NAMES, *_PROJECTORS[checkpoint[1]["mm_projector_type"]]):
            name = name.replace(stored, native)
        yield name, values
    is_here = _has_tower(checkpoint)
    folder = tower_folder(checkpoint[0], checkpoint[1]["mm_vision_tower"], is_here=is_here)
    if folder is not None and not is_here:
        for name, values in seeing_tensors(readable_checkpoint(folder)):
            if name.startswith("vision_model."):
                yield f"vision_tower.{name}", values


def _has_tiles(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint[1].get("image_aspect_ratio") == "anyres")


def _canvases(checkpoint: Checkpoint) -> list[list[int]]:
    """Return height and width of each; config.json has the width first."""
    return [[height, width] for width, height in checkpoint[1]["image_grid_pinpoints"]]


def _has_tower(checkpoint: Checkpoint) -> bool:
    return any(name.startswith(_TOWER) for name in read_checkpoint(checkpoint[0]).tensors)


def _tower(checkpoint: Checkpoint) -> Any:
    """Return the config of the tower."""
    folder, raw = checkpoint
    return tower_config(folder, raw["mm_vision_tower"], is_here=_has_tower(checkpoint))


def _form(part: VisionPart) -> VisionFamily:
    return LLAVA_NEXT if part.config.model_type == "llava_next" else LLAVA


def llava_original_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    form = _form(part)
    return form.expansion(part, size, options).replace(form.token, _LLAVA_ORIGINAL_TOKEN)


LLAVA_ORIGINAL = VisionFamily(
    ("LlavaLlamaForCausalLM", "LlavaMistralForCausalLM"),
    _LLAVA_ORIGINAL_TOKEN,
    llava_original_expansion,
    lambda part, image, options: _form(part).features(part, image, options),
    native=NativeForm(llava_original_config, processor, llava_original_tensors),
)
