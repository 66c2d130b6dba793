"""Idefics 3: tiles row by row, each after a tag that says where it is, then the whole image."""

from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart, rows_of

if TYPE_CHECKING:
    import torch

_TOKEN, _AROUND, _WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
_MOST_TILES_A_SIDE = 10  # that there are tags for


def _tag(row: int, column: int) -> str:
    return f"<row_{row}_col_{column}>"


def _tile(part: VisionPart) -> str:
    vision = part.config.vision_config
    return _TOKEN * int((vision.image_size // vision.patch_size) ** 2 // part.config.scale_factor**2)


def whole_view(part: VisionPart) -> str:
    """Return the tokens of an image that is not cut, between marks."""
    return f"{_AROUND}{_WHOLE}{_tile(part)}{_AROUND}"


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return tags and tokens."""
    width, height = size
    tile = _tile(part)
    _, rows, columns = part.processor.get_number_of_image_patches(height, width, {})
    whole = whole_view(part)
    if rows * columns == 0:
        return whole
    lines = ["".join(f"{_AROUND}{_tag(r + 1, c + 1)}{tile}" for c in range(columns)) + "\n" for r in range(rows)]
    return "".join(lines) + "\n" + whole


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all tiles and of the whole."""
    inputs = part.processor(images=[[image]], return_tensors="pt")
    seen = part.model.get_image_features(
        pixel_values=inputs["pixel_values"], pixel_attention_mask=inputs["pixel_attention_mask"]
    )
    return rows_of(seen.pooler_output)


FAMILY = VisionFamily(
    ("Idefics3ForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=_TOKEN,
    goes_first=False,
    words=(
        _AROUND,
        _WHOLE,
        *(_tag(r, c) for r in range(1, _MOST_TILES_A_SIDE + 1) for c in range(1, _MOST_TILES_A_SIDE + 1)),
    ),
)
