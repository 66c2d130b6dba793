"""Phi-3-vision and Phi-3.5-vision: tiles as many as fit the image's shape, white around it, then the whole."""

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image

from lmdeploy.vl.families.clip import tower_config
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart, renamed

if TYPE_CHECKING:
    import torch

_TOKEN = "<|image|>"
_OWN = r"^model\.vision_embed_tokens\."
_NAMES = (
    (_OWN + r"img_processor\.vision_model\.", "vision_tower."),
    (_OWN + r"img_projection\.", "projection."),
    (_OWN + "glb_GN", "separator"),
    (_OWN + "sub_GN", "line_end"),
)


@dataclass(frozen=True)
class Tiler:
    """How images are cut."""

    side: int  # of a tile, in pixels
    max_tiles: int  # tiles of an image
    # Of each colour
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # An image gets as many tiles as it may have, whatever its size; otherwise no more along it than it fills
    enlarges: bool = True

    def lying(self, width: int, height: int) -> tuple[int, int]:
        """Return tiles along an image that is not higher than wide, and its height once it is as wide as they are."""
        ratio = width / height
        tiles = 1
        while (tiles + 1) * math.ceil((tiles + 1) / ratio) <= self.max_tiles:
            tiles += 1
        if not self.enlarges:
            tiles = min(tiles, math.ceil(width / self.side))
        return tiles, max(1, int(tiles * self.side / ratio))

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of tiles."""
        tiles, breadth = self.lying(max(size), min(size))
        across = math.ceil(breadth / self.side)
        return (across, tiles) if size[0] >= size[1] else (tiles, across)

    def cut(self, image: Image.Image) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the whole ``[3, side, side]`` and the tiles ``[rows, columns, 3, side, side]``."""
        import numpy as np
        import torch

        is_upright = image.width < image.height
        lying = image.transpose(Image.Transpose.TRANSPOSE) if is_upright else image
        tiles, breadth = self.lying(*lying.size)
        canvas = Image.new("RGB", (tiles * self.side, math.ceil(breadth / self.side) * self.side), "white")
        resized = lying.resize((canvas.width, breadth), Image.Resampling.BILINEAR)
        canvas.paste(resized, (0, (canvas.height - breadth) // 2))
        if is_upright:
            canvas = canvas.transpose(Image.Transpose.TRANSPOSE)
        rows, columns = canvas.height // self.side, canvas.width // self.side
        pixels = torch.from_numpy(np.asarray(canvas, dtype=np.float32) / 255)
        pixels = ((pixels - torch.tensor(self.mean)) / torch.tensor(self.std)).permute(2, 0, 1)
        whole = torch.nn.functional.interpolate(pixels[None], size=(self.side, self.side), mode="bicubic")[0]
        return whole, pixels.view(3, rows, self.side, columns, self.side).permute(1, 3, 0, 2, 4)


def config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with CLIP's, and the width of the rows."""
    from transformers import LlavaConfig

    folder, raw = checkpoint
    return LlavaConfig(
        architectures=["lmdeploy.vl.phi3_tower:Phi3Tower"],
        vision_config=tower_config(folder, raw["img_processor"]["model_name"], is_here=True).to_dict(),
        text_config={"model_type": "llama", "hidden_size": raw["hidden_size"], "num_attention_heads": 1},
    )


def processor(checkpoint: Checkpoint) -> Tiler:
    """Return the processor, which cuts images into tiles, as preprocessor_config.json says."""
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    settings = json.loads((checkpoint[0] / "preprocessor_config.json").read_text(encoding="utf-8"))
    mean, std = settings.get("image_mean") or OPENAI_CLIP_MEAN, settings.get("image_std") or OPENAI_CLIP_STD
    return Tiler(config(checkpoint).vision_config.image_size, int(settings["num_crops"]), tuple(mean), tuple(std))


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of the tiles' lines, of what separates them from the whole's, and of these."""
    tiler: Tiler = part.processor
    rows, columns = tiler.grid(size)
    side = int(part.config.vision_config.image_size // part.config.vision_config.patch_size) // 2
    return _TOKEN * (rows * side * (columns * side + 1) + 1 + side * (side + 1))


def features(part: VisionPart, image: Image.Image, options: Options) -> "torch.Tensor":
    rows: torch.Tensor = part.model(*part.processor.cut(image))
    return rows


FAMILY = VisionFamily(
    ("Phi3VForCausalLM",),
    _TOKEN,
    expansion,
    features,
    native=NativeForm(config, processor, renamed(*_NAMES, flat=("separator", "line_end"))),
)
