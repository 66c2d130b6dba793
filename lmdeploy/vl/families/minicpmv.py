"""MiniCPM-V: the whole image, then slices of it as its shape and size ask for, until 4.5 of a fixed number of rows.

In 2.5 the tags of slices are around all of them, each between those of an image; later, around each.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL.Image import Image, Resampling

from lmdeploy.turbomind.text_part import minicpm_version
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart

if TYPE_CHECKING:
    import torch

_TOKEN, _WHOLE, _SLICE, _NUMBER = (
    "<unk>",
    ("<image>", "</image>"),
    ("<slice>", "</slice>"),
    ("<image_id>", "</image_id>"),
)


@dataclass(frozen=True)
class Slicer:
    """How images are cut."""

    side: int  # of a square with as many pixels as a view has
    patch: int  # of which a view's sides are multiples
    max_slices: int  # slices of an image
    is_numbered: bool  # whether images have numbers in the prompt
    # Of each colour
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def grid(self, size: tuple[int, int], options: Options) -> tuple[int, int]:
        """Return columns and rows of slices; zeros for an image that is small enough as a whole.

        Raises `ValueError` if ``max_slice_nums`` is no number of slices.
        """
        requested = options.get("max_slice_nums", self.max_slices)
        if type(requested) is not int or requested < 1:
            raise ValueError(f"max_slice_nums must be a whole number >= 1, got {requested!r}")
        max_slices = min(requested, self.max_slices)
        width, height = size
        count = min(math.ceil(width * height / self.side**2), max_slices)
        if count < 2:
            return 0, 0
        counts = [n for n in (count - 1, count, count + 1) if 1 < n <= max_slices]
        grids = [(columns, n // columns) for n in counts for columns in range(1, n + 1) if n % columns == 0]
        shape = math.log(width / height)
        return min(grids, key=lambda grid: abs(shape - math.log(grid[0] / grid[1])))

    def view(self, width: float, height: float, *, grows: bool) -> tuple[int, int]:
        """Return the size of a view of something of this size: made larger or smaller, or smaller alone."""
        if grows or width * height > self.side**2:
            ratio = width / height
            height = int(self.side / math.sqrt(ratio))
            width = int(height * ratio)
        return _multiple(width, self.patch), _multiple(height, self.patch)

    def cut(self, image: Image, options: Options) -> "Iterator[torch.Tensor]":
        """Yield views of one size each ``[views, 3, height, width]``: the whole image's, that of all slices."""
        import numpy as np
        import torch

        def pixels(views: list[Image]) -> torch.Tensor:
            values = torch.from_numpy(np.stack([np.asarray(view, dtype=np.float32) for view in views]) / 255)
            return ((values - torch.tensor(self.mean)) / torch.tensor(self.std)).permute(0, 3, 1, 2)

        columns, rows = self.grid(image.size, options)
        yield pixels([image.resize(self.view(*image.size, grows=columns == 0), Resampling.BICUBIC)])
        if columns == 0:
            return
        tile_width, tile_height = (_multiple(side, n) / n for side, n in zip(image.size, (columns, rows), strict=True))
        width, height = self.view(tile_width, tile_height, grows=True)
        whole = image.resize((width * columns, height * rows), Resampling.BICUBIC)
        corners = [(column * width, row * height) for row in range(rows) for column in range(columns)]
        yield pixels([whole.crop((left, top, left + width, top + height)) for left, top in corners])


def _multiple(length: float, unit: int) -> int:
    """Return the nearest multiple of ``unit``, at least one."""
    return max(round(length / unit), 1) * unit


def config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with SigLIP's of any shape, the width of the rows and their number."""
    from transformers import LlavaConfig

    _, raw = checkpoint
    names = ("hidden_size", "image_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "patch_size")
    vision = {"model_type": "idefics2_vision", **{name: raw["vision_config"][name] for name in names}}
    vision["num_hidden_layers"] -= bool(raw.get("drop_vision_last_layer"))
    version = minicpm_version(raw)
    return LlavaConfig(
        architectures=["lmdeploy.vl.minicpmv_tower:MiniCpmTower"],
        vision_config=vision,
        text_config={"model_type": "llama", "hidden_size": raw["hidden_size"], "num_attention_heads": 1},
        image_seq_length=raw["query_num"],
        is_in_line=version == "2.5",
        values_have_positions=version == "4.5",
    )


def processor(checkpoint: Checkpoint) -> Slicer:
    """Return the processor, which cuts images into slices, as preprocessor_config.json says."""
    settings = json.loads((checkpoint[0] / "preprocessor_config.json").read_text(encoding="utf-8"))
    return Slicer(
        side=int(settings["scale_resolution"]),
        patch=int(settings["patch_size"]),
        max_slices=int(settings["max_slice_nums"]) if settings.get("slice_mode", True) else 1,
        is_numbered=bool(settings.get("use_image_id", False)),
        mean=tuple(settings["norm_mean"]),
        std=tuple(settings["norm_std"]),
    )


def number(part: VisionPart, index: int, options: Options) -> str:
    """Return the number of an image between its tags, where images have one."""
    is_numbered = bool(options.get("use_image_id", part.processor.is_numbered))
    return str(index).join(_NUMBER) if is_numbered else ""


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each view between its tags, slices in lines."""
    rows_of_view = _TOKEN * int(part.config.image_seq_length)
    columns, rows = part.processor.grid(size, options)
    whole = rows_of_view.join(_WHOLE)
    if part.config.is_in_line:
        return whole + ("\n".join([whole * columns] * rows).join(_SLICE) if rows else "")
    return whole + "\n".join([rows_of_view.join(_SLICE) * columns] * rows)


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all views."""
    import torch

    cut = list(part.processor.cut(image, options))
    patches = [views.shape[2] * views.shape[3] // part.config.vision_config.patch_size**2 for views in cut]
    line = max(patches) if part.config.is_in_line else 0
    return torch.cat([part.model(views, line) for views in cut])


FAMILY = VisionFamily(
    ("MiniCPMV",),
    _TOKEN,
    expansion,
    features,
    words=(*_WHOLE, *_SLICE, *_NUMBER),
    native=NativeForm(config, processor),
    number=number,
)


# MiniCPM-V 4.6, whose processor and tower are those of ``transformers``.
_PAD = "<|image_pad|>"


def numbered(part: VisionPart, index: int, options: Options) -> str:
    """Return the number of an image between its tags, where images have one."""
    return str(index).join(_NUMBER) if options.get("use_image_id", part.processor.use_image_id) else ""


def views_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each view between its tags, slices in lines."""
    processor, sizes = part.processor, (size[1], size[0])
    side, patch, mode = processor.scale_resolution, processor.patch_size, processor.downsample_mode

    def view(height: float, width: float) -> str:
        return _PAD * int(height // patch * (width // patch) // (4 if mode == "4x" else 16))

    grid = processor.get_sliced_grid(sizes, processor.max_slice_nums, side) if processor.slice_mode else None
    whole = view(*processor.find_best_resize(sizes, side, patch, mode, allow_upscale=grid is None)).join(_WHOLE)
    if grid is None:
        return whole
    height, width = processor.get_refine_size(sizes, grid, side, patch, mode, allow_upscale=True)
    one = view(height // grid[0], width // grid[1]).join(_SLICE)
    return whole + "\n".join([one * grid[1]] * grid[0])


MINICPMV_4_6 = VisionFamily(
    ("MiniCPMV4_6ForConditionalGeneration",),
    _PAD,
    views_expansion,
    words=(*_WHOLE, *_SLICE, *_NUMBER),
    number=numbered,
)
