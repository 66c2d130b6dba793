"""Idefics3 and SmolVLM; Granite Docling, which is one, or has deeper features."""

import dataclasses
import datetime
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VideoForm, VisionFamily, VisionPart, image_rows
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch


# Idefics 3: tiles row by row, each after a tag that says where it is, then the whole image.
_IDEFICS3_TOKEN, _AROUND, _WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
_MAX_TILES_PER_SIDE = 10  # that there are tags for


def _tag(row: int, column: int) -> str:
    return f"<row_{row}_col_{column}>"


def _tile(part: VisionPart) -> str:
    vision = part.config.vision_config
    return _IDEFICS3_TOKEN * int((vision.image_size // vision.patch_size) ** 2 // part.config.scale_factor**2)


def whole_view(part: VisionPart) -> str:
    """Return the tokens of an image that is not cut, between tags."""
    return f"{_AROUND}{_WHOLE}{_tile(part)}{_AROUND}"


def idefics3_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return tags and tokens."""
    width, height = size
    tile = _tile(part)
    _, rows, columns = part.processor.get_number_of_image_patches(height, width, {})
    whole = whole_view(part)
    if rows * columns == 0:
        return whole
    lines = ["".join(f"{_AROUND}{_tag(r + 1, c + 1)}{tile}" for c in range(columns)) + "\n" for r in range(rows)]
    return "".join(lines) + "\n" + whole


IDEFICS3 = VisionFamily(
    ("Idefics3ForConditionalGeneration",),
    _IDEFICS3_TOKEN,
    idefics3_expansion,
    lambda part, image, options: image_rows(part, [[image]], options),
    written=_IDEFICS3_TOKEN,
    goes_first=False,
    words=(
        _AROUND,
        _WHOLE,
        *(_tag(r, c) for r in range(1, _MAX_TILES_PER_SIDE + 1) for c in range(1, _MAX_TILES_PER_SIDE + 1)),
    ),
)


# Granite Docling from 500M on: no whole image where there is one tile, and features that layers add.
def docling_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return tags and tokens, of which there are four times as many on the fine route."""
    vision, processor = part.config.vision_config, part.processor
    rows, columns = processor.get_tile_grid(size[1], size[0])
    count = int((vision.image_size // vision.patch_size) ** 2 // vision.scale_factor**2)
    tile = _IDEFICS3_TOKEN * (count * (4 if processor.fine_route else 1))
    lines = ["".join(f"{_AROUND}{_tag(r + 1, c + 1)}{tile}" for c in range(columns)) + "\n" for r in range(rows)]
    return "".join(lines) + (f"\n{_AROUND}{_WHOLE}{tile}{_AROUND}" if rows * columns > 1 else "")


def docling_features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows; the embedding is multiplied as those of tokens are, the deeper ones are not."""
    rows = image_rows(part, [[image]], options)
    rows[:, : part.config.text_config.hidden_size] *= part.config.text_config.embedding_multiplier
    return rows


GRANITE_DOCLING = dataclasses.replace(
    IDEFICS3,
    architectures=("GraniteDoclingForConditionalGeneration",),
    expansion=docling_expansion,
    features=docling_features,
)


# SmolVLM: images as Idefics 3; of a video each frame as a whole image, after its minute and second.
_SMOLVLM_TOKEN, _VIDEO = IDEFICS3.token, "<video>"
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    """Return a number under a thousand as English words."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        ones = number % 10
        return _TENS[number // 10 - 2] + (f"-{_SMALL[ones]}" if ones else "")
    rest = number % 100
    return f"{_SMALL[number // 100]} hundred" + (f" and {in_words(rest)}" if rest else "")


def smolvlm_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the introduction of the video, and each frame's tokens between tags."""
    times = times_of(options)
    length = datetime.timedelta(seconds=int(times[-1]))
    frame = whole_view(part)
    frames = (f"\nFrame from {int(time // 60):02d}:{int(time % 60):02d}:{frame}" for time in times)
    introduction = f"You are provided the following series of {in_words(len(times))} frames from a {length} "
    return introduction + "[H:MM:SS] video.\n" + "".join(frames) + "\n\n"


def smolvlm_features(part: VisionPart, stacked: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all frames."""
    size = part.video.get("video_sampling", {}).get("video_size") or part.video.get("size") or {}
    side = int(size.get("longest_edge") or part.processor.size["longest_edge"])
    frames = frames_in(stacked, len(times_of(options)))
    return image_rows(part, [frames], options, do_image_splitting=False, size={"longest_edge": side})


SMOLVLM = dataclasses.replace(
    IDEFICS3,
    architectures=("SmolVLMForConditionalGeneration",),
    video=VideoForm(
        _SMOLVLM_TOKEN, smolvlm_expansion, smolvlm_features, written=_VIDEO, placeholder=_VIDEO, words=IDEFICS3.words
    ),
)
