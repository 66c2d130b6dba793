"""InternLM-XComposer2: images in one size; the 4KHD model and 2.5: the whole, then tiles by the image's shape.

The tokenizer has no token for images, so that the one for what is unknown stands for them.
"""

from math import isqrt
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, Squarer, VisionFamily, VisionPart, renamed
from lmdeploy.vl.families.phi3_vision import Tiler

if TYPE_CHECKING:
    import torch

_TOKEN = "<unk>"
_TOWER = "vit.vision_tower.vision_model."
_NAMES = (
    (r"^vit\.vision_tower\.vision_model\.", "vision_tower."),
    (r"^vision_proj\.", "projection."),
    ("^plora_glb_GN", "separator"),
    ("^plora_sub_GN", "line_end"),
)
_HEAD_DIM = 64  # CLIP's
_MAX_TILES = {336: 25, 560: 24}  # tiles of an image, by their side, as the authors' chat has it; hd_num in config.json
_NO_LARGER_THAN_FILLED = 560  # the side of 2.5's tiles


def config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with CLIP's, whose sizes are those of the tensors."""
    from transformers import LlavaConfig

    folder, raw = checkpoint
    shapes = {name: info.shape for name, info in read_checkpoint(folder).tensors.items()}
    hidden, _, patch, _ = shapes[f"{_TOWER}embeddings.patch_embedding.weight"]
    positions = shapes[f"{_TOWER}embeddings.position_embedding.weight"][0]
    has_tiles = "plora_glb_GN" in shapes
    return LlavaConfig(
        architectures=[f"lmdeploy.vl.xcomposer_tower:{'TiledTower' if has_tiles else 'SquareTower'}"],
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": hidden,
            "image_size": isqrt(positions - 1) * patch,
            "intermediate_size": shapes[f"{_TOWER}encoder.layers.0.mlp.fc1.weight"][0],
            "num_attention_heads": max(1, hidden // _HEAD_DIM),
            "num_hidden_layers": sum(name.startswith(_TOWER) and name.endswith(".mlp.fc1.weight") for name in shapes),
            "patch_size": patch,
        },
        text_config={"model_type": "llama", "hidden_size": raw["hidden_size"], "num_attention_heads": 1},
        has_tiles=has_tiles,
    )


def processor(checkpoint: Checkpoint) -> Squarer | Tiler:
    """Return the processor, which makes images square or cuts them into tiles."""
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    settings = config(checkpoint)
    side = int(settings.vision_config.image_size)
    if not settings.has_tiles:
        return Squarer(side)
    mean, std = tuple(OPENAI_CLIP_MEAN), tuple(OPENAI_CLIP_STD)
    max_tiles = int(checkpoint[1].get("hd_num") or _MAX_TILES.get(side, min(_MAX_TILES.values())))
    return Tiler(side, max_tiles, mean, std, enlarges=side != _NO_LARGER_THAN_FILLED)


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of patches, or of the lines of the whole, of a separator and of the tiles' lines."""
    vision = part.config.vision_config
    cutter: Squarer | Tiler = part.processor
    side = int(vision.image_size // vision.patch_size)
    if isinstance(cutter, Squarer):
        return _TOKEN * (side * side)
    rows, columns = cutter.grid(size)
    side //= 2
    return _TOKEN * (side * (side + 1) + 1 + rows * side * (columns * side + 1))


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    cutter = part.processor
    shown = (cutter.pixels(image),) if isinstance(cutter, Squarer) else cutter.cut(image)
    rows: torch.Tensor = part.model(*shown)
    return rows


FAMILY = VisionFamily(
    ("InternLMXComposer2ForCausalLM",),
    _TOKEN,
    expansion,
    features,
    written=_TOKEN,
    native=NativeForm(config, processor, renamed(*_NAMES, flat=("separator", "line_end"))),
)
