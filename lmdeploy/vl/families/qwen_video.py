"""Videos of Qwen2-VL to Qwen4 and GLM-4.1V to 4.6V: two frames at a time, on a grid of times, rows and columns.

Qwen2-VL, Qwen2.5-VL and EXAONE 4.5 have all of them in one run, Qwen2.5-VL at positions as far apart as the frames are
in time; the others write the time alongside every two, which then are as an image does.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VideoForm, VisionPart, all_rows
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch

TOKEN, _BEGIN, _END = "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
_RUNS = ("qwen2_vl", "qwen2_5_vl", "exaone4_5")  # types of models that write no times
# Of the classes, for checkpoints that say nothing: pixels of a frame; and of all frames, where times are written.
_OF_FRAME = {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}
_OF_VIDEO = {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}
_OF_GLM = {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 60000}
_LARGEST_STEP = 1000.0  # positions between frames that the engine takes


def _writes_times(part: VisionPart) -> bool:
    return part.config.model_type not in _RUNS


def pixel_bounds(part: VisionPart, options: Options) -> tuple[int, int]:
    """Return how few and how many pixels the model was made for, within which a caller may choose.

    Raises `ValueError` if ``min_pixels`` or ``max_pixels`` is no number of pixels.
    """
    size = part.video.get("size") or {}
    of_model = _OF_GLM if part.config.model_type.startswith("glm") else _OF_VIDEO
    layout = of_model if _writes_times(part) else _OF_FRAME
    min_pixels = int(size.get("shortest_edge") or part.video.get("min_pixels") or layout["shortest_edge"])
    max_pixels = int(size.get("longest_edge") or part.video.get("max_pixels") or layout["longest_edge"])
    return requested_pixels(options, min_pixels, max_pixels)


def requested_pixels(options: Options, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return how few and how many pixels a caller asks for, within bounds; raise `ValueError` as `pixel_bounds`."""
    bounds = []
    for name, default in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
        requested = options.get(name, default)
        if type(requested) is not int or requested < 1:
            raise ValueError(f"{name} must be a whole number >= 1, got {requested!r}")
        bounds.append(min(max(requested, min_pixels), max_pixels))
    if bounds[0] > bounds[1]:
        raise ValueError(f"min_pixels must be at most max_pixels, got {bounds[0]} and {bounds[1]}")
    return bounds[0], bounds[1]


def scaled_size(part: VisionPart, size: tuple[int, int], options: Options) -> tuple[int, int]:
    """Return height and width that each frame gets."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as of_frame
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as of_video

    width, height = size
    unit = int(part.processor.patch_size * part.processor.merge_size)
    min_pixels, max_pixels = pixel_bounds(part, options)
    if _writes_times(part):
        count = max(2, len(times_of(options)))
        rows, columns = of_video(count, height, width, factor=unit, min_pixels=min_pixels, max_pixels=max_pixels)
    else:
        rows, columns = of_frame(height, width, factor=unit, min_pixels=min_pixels, max_pixels=max_pixels)
    return rows, columns


def grid(part: VisionPart, size: tuple[int, int], options: Options) -> tuple[int, int, int]:
    """Return pairs of frames in a run, rows and columns."""
    height, width = scaled_size(part, size, options)
    unit = int(part.processor.patch_size * part.processor.merge_size)
    return 1 if _writes_times(part) else _pairs(times_of(options)), height // unit, width // unit


def _pairs(times: Sequence[float]) -> int:
    return (len(times) + 1) // 2


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens and the tags around them; of every two frames alone, after the time."""
    times = times_of(options)
    frames, rows, columns = grid(part, size, options)
    frame_step(part, options)  # refuses before anything is looked at
    run = _BEGIN + TOKEN * (frames * rows * columns) + _END
    if not _writes_times(part):
        return run
    firsts, seconds = times[::2], [*times[1::2], *times[-1:]]  # an odd one is its own second
    return "".join(f"<{(a + b) / 2:.1f} seconds>{run}" for a, b in zip(firsts, seconds, strict=False))


def frame_step(part: VisionPart, options: Options) -> float:
    """Return how many positions two frames are after the two before; raise `ValueError` if they are too far apart."""
    times = times_of(options)
    a_second = getattr(part.config.vision_config, "tokens_per_second", None)
    if a_second is None or len(times) < 2 or _writes_times(part):
        return 1.0
    step = float(a_second) * 2 * (times[-1] - times[0]) / (len(times) - 1)
    if step > _LARGEST_STEP:
        raise ValueError(f"a video's frames must be at most {_LARGEST_STEP / 2 / a_second:.0f} seconds apart")
    return step


def features(part: VisionPart, stacked: Image, options: Options) -> "torch.Tensor":
    """Return the rows: the embedding, then what the model adds after its first layers, if anything."""
    import torch

    times = times_of(options)
    frames = frames_in(stacked, len(times))
    frames += frames[-1:] * (len(frames) % 2)
    height, width = scaled_size(part, frames[0].size, options)
    frames = [frame.resize((width, height), part.processor.resample) for frame in frames]
    inputs = part.processor(images=frames, do_resize=False, return_tensors="pt")
    # Of an image each patch is there twice, as two frames; here they differ.
    once = inputs["pixel_values"].unflatten(-1, (3, 2, -1))[:, :, 0].unflatten(0, (len(frames) // 2, 2, -1))
    patches = torch.stack([once[:, 0], once[:, 1]], dim=3).flatten(0, 1).flatten(1)
    whole = inputs["image_grid_thw"][:1].clone()
    whole[0, 0] = len(frames) // 2
    seen = part.model.get_video_features(pixel_values_videos=patches.to(part.model.dtype), video_grid_thw=whole)
    return all_rows(seen)


FORM = VideoForm(
    TOKEN,
    expansion,
    features,
    written=f"{_BEGIN}{TOKEN}{_END}",
    placeholder=f"{_BEGIN}{TOKEN}{_END}",
    words=(_BEGIN, _END),
    grid=grid,
    frame_step=frame_step,
)
