"""SmolVLM: images as Idefics 3; of a video each frame as a whole image, after its minute and second."""

import dataclasses
import datetime
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families import idefics3
from lmdeploy.vl.families.common import Options, VideoForm, VisionPart, rows_of
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch

_TOKEN, _VIDEO = idefics3.FAMILY.token, "<video>"
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


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return what introduces the video, and each frame's tokens between marks."""
    times = times_of(options)
    length = datetime.timedelta(seconds=int(times[-1]))
    frame = idefics3.whole_view(part)
    frames = (f"\nFrame from {int(time // 60):02d}:{int(time % 60):02d}:{frame}" for time in times)
    introduction = f"You are provided the following series of {in_words(len(times))} frames from a {length} "
    return introduction + "[H:MM:SS] video.\n" + "".join(frames) + "\n\n"


def features(part: VisionPart, stacked: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all frames."""
    said = part.video.get("video_sampling", {}).get("video_size") or part.video.get("size") or {}
    side = int(said.get("longest_edge") or part.processor.size["longest_edge"])
    frames = frames_in(stacked, len(times_of(options)))
    inputs = part.processor(images=[frames], do_image_splitting=False, size={"longest_edge": side}, return_tensors="pt")
    seen = part.model.get_image_features(
        pixel_values=inputs["pixel_values"], pixel_attention_mask=inputs["pixel_attention_mask"]
    )
    return rows_of(seen.pooler_output)


FAMILY = dataclasses.replace(
    idefics3.FAMILY,
    architectures=("SmolVLMForConditionalGeneration",),
    video=VideoForm(_TOKEN, expansion, features, written=_VIDEO, mark=_VIDEO, words=idefics3.FAMILY.words),
)
