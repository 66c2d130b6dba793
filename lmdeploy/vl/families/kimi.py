"""Kimi K2.5 to K2.7: an image of any shape, shrunk if it is large and padded to whole squares."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL.Image import Image, Resampling

from lmdeploy.vl.families.common import (
    Checkpoint,
    NativeForm,
    Options,
    VisionFamily,
    VisionPart,
    all_rows,
    normalized,
    saved_processor,
)

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _CONTENT, _END = "<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"


@dataclass(frozen=True)
class Fitter:
    """How images are shrunk and padded; the processor of ``transformers`` needs torchvision."""

    patch: int  # pixels of a patch's side
    merged: int  # patches of the side of what one row shows
    max_patches: int
    max_per_side: int  # patches
    # Of each channel's values between 0 and 1
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def shrunk(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size (width, height) of an image before it is padded."""
        longest = self.max_per_side * self.patch
        patches = math.prod(max(1, side // self.patch) for side in size)
        scale = min(1.0, math.sqrt(self.max_patches / patches), *(longest / side for side in size))
        width, height = (min(max(1, int(side * scale)), longest) for side in size)
        return width, height

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of tokens."""
        width, height = (-(-side // (self.patch * self.merged)) for side in self.shrunk(size))
        return height, width

    def patches(self, image: Image) -> "torch.Tensor":
        """Return the normalized patches ``[rows, columns, 3, side, side]``."""
        import numpy as np
        import torch

        rows, columns = (count * self.merged for count in self.grid(image.size))
        pixels = np.array(image.resize(self.shrunk(image.size), Resampling.BICUBIC))
        canvas = torch.zeros(rows * self.patch, columns * self.patch, 3)
        canvas[: pixels.shape[0], : pixels.shape[1]] = torch.from_numpy(pixels)
        whole = normalized(canvas.permute(2, 0, 1), self.mean, self.std)
        return whole.unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).permute(1, 3, 0, 2, 4)


def config(checkpoint: Checkpoint) -> Any:
    """Return the ``Kimi_K25Config``; the authors' has other names in its tower."""
    from transformers import Kimi_K25Config

    given = dict(checkpoint[1])
    vision = {
        name.removeprefix("vt_").removeprefix("init_"): value
        for name, value in given["vision_config"].items()
        if name != "model_type"
    }
    return Kimi_K25Config.from_dict(
        given | {"vision_config": vision, "architectures": ["Kimi_K25ForConditionalGeneration"]}
    )


def processor(checkpoint: Checkpoint) -> Fitter:
    """Return the processor, as the checkpoint's files say: its authors', or those of ``transformers``."""
    settings = saved_processor(checkpoint[0])
    own = settings.get("media_proc_cfg", {})
    return Fitter(
        int(own.get("patch_size", settings.get("patch_size", 14))),
        int(own.get("merge_kernel_size", settings.get("merge_size", 2))),
        int(own.get("in_patch_limit", settings.get("max_patches", 16384))),
        int(own.get("patch_limit_on_one_side", settings.get("size", {}).get("max_height", 512))),
        tuple(own.get("image_mean", settings.get("image_mean", (0.5,) * 3))),
        tuple(own.get("image_std", settings.get("image_std", (0.5,) * 3))),
    )


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens; a template writes the tags around them."""
    fitter: Fitter = part.processor
    return _TOKEN * math.prod(fitter.grid(size))


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    import torch

    patches = part.processor.patches(image).to(part.model.dtype)
    grid = torch.tensor([[1, *patches.shape[:2]]])
    return all_rows(part.model.model.get_image_features(patches.flatten(0, 1), grid))


KIMI_K25 = VisionFamily(
    ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
    _TOKEN,
    expansion,
    features,
    written=f"{_BEGIN}image{_CONTENT}{_TOKEN}{_END}",
    words=(_BEGIN, _CONTENT, _END),
    native=NativeForm(config, processor),
)
