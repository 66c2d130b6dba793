"""Image encoder, one image at a time: an image's embeddings do not depend on the batch.

Rows are kept, as long as there is room, by what they were made of.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.prompts import ImageRows, PromptImage
from lmdeploy.vl.families.common import Options, VideoForm, VisionFamily, VisionPart
from lmdeploy.vl.videos import frame_size, times_of

if TYPE_CHECKING:
    import numpy as np

CACHE_BYTES = 256 << 20
_NO_GRID = (0, 0, 0)


@dataclass(frozen=True)
class Rows:
    """The embeddings of an image ``[tokens, hidden]``, of ``dtype``; as 16-bit integers for ``bfloat16``."""

    values: "np.ndarray[Any, np.dtype[Any]]"
    dtype: str


def digest_of(image: Image, options: Options) -> bytes:
    """Return 32 bytes made of all that an image's embeddings depend on, for one model."""
    header = json.dumps([image.mode, image.size, dict(options)], sort_keys=True)
    return hashlib.sha256(header.encode() + b"\0" + image.tobytes()).digest()


class VisionEncoder:
    """The vision tower of a model. Safe to use from any thread."""

    def __init__(self, family: VisionFamily, part: VisionPart, cache_bytes: int = CACHE_BYTES) -> None:
        self._family = family
        self._part = part
        self._max_bytes = cache_bytes  # most bytes of embeddings that are kept
        self._used = 0  # guarded by _lock
        self._lock = threading.Lock()  # one image at a time
        self._kept: OrderedDict[bytes, Rows] = OrderedDict()  # guarded by _lock
        self.computed = 0  # images that were not kept

    def rows(self, image: Image, options: Options, digest: bytes) -> Rows:
        """Return an image's embeddings; raise `ValueError` if the image processor refuses it."""
        with self._lock:
            kept = self._kept.get(digest)
            if kept is not None:
                self._kept.move_to_end(digest)
                return kept
            rows = self._compute(image, options)
            self.computed += 1
            self._keep(digest, rows)
            return rows

    def placed(self, images: Sequence[PromptImage]) -> list[ImageRows]:
        """Return the embeddings of a prompt's images, at their places."""
        result = []
        for image in images:
            rows = self.rows(image.image, image.options, image.digest)
            if self._family.has_cross_attention:
                result += [cross_attended(image, rows)]
                continue
            size, step = frame_size(image.image.size, image.options), 1.0
            video = self._video(image.options)
            if video is not None:
                step = video.frame_step(self._part, image.options)
            grid = (video or self._family).grid(self._part, size, image.options)
            result += cut(image, rows, grid, step, shares_position=self._family.shares_position)
        return result

    def _compute(self, image: Image, options: Options) -> Rows:
        import torch

        with torch.inference_mode():
            form = self._video(options) or self._family
            rows = form.features(self._part, image, options).contiguous()
        if rows.dtype is torch.bfloat16:
            return Rows(rows.view(torch.uint16).numpy(), "bfloat16")
        return Rows(rows.float().numpy(), "float32")

    def _video(self, options: Options) -> VideoForm | None:
        return self._family.video if times_of(options) else None

    def _keep(self, digest: bytes, rows: Rows) -> None:
        if rows.values.nbytes > self._max_bytes:
            return
        self._kept[digest] = rows
        self._used += rows.values.nbytes
        while self._used > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._used -= oldest.values.nbytes


def cut(
    image: PromptImage,
    rows: Rows,
    grid: tuple[int, int, int] = _NO_GRID,
    frame_step: float = 1.0,
    *,
    shares_position: bool = False,
) -> list[ImageRows]:
    """Return an image's rows run by run, as its tokens are placed.

    A grid is each run's; with ``shares_position`` all tokens of a run but the first and the last are at one position.
    Raises `RuntimeError` if there are not as many rows as tokens.
    """
    count = sum(length for _, length in image.runs)
    if rows.values.shape[0] != count:
        raise RuntimeError(f"an image has {rows.values.shape[0]} rows for {count} tokens")
    result, first = [], 0
    for begin, length in image.runs:
        pieces = [(length, grid, frame_step)]
        if shares_position:  # as frames that are shown at once; the last is a tag that follows the image
            pieces = [(1, (1, 1, 1), 1.0), (length - 2, (length - 2, 1, 1), 0.0), (1, _NO_GRID, 1.0)]
        for tokens, piece_grid, step in pieces:
            digest = hashlib.sha256(image.digest + first.to_bytes(4, "little")).digest()
            part = rows.values[first : first + tokens]
            result.append(ImageRows(begin, part, digest, rows.dtype, piece_grid, step))
            begin, first = begin + tokens, first + tokens
    return result


def cross_attended(image: PromptImage, rows: Rows) -> ImageRows:
    """Return the rows of an image that the text looks at from its token on."""
    ((begin, tokens),) = image.runs
    return ImageRows(begin, rows.values, image.digest, rows.dtype, cross_tokens=rows.values.shape[0] - tokens)


def load_encoder(checkpoint: Path) -> VisionEncoder:
    """Return the encoder of a checkpoint that sees. Raises as :func:`lmdeploy.vl.tower.seeing_part`."""
    from lmdeploy.vl.tower import family_in, seeing_part

    part = seeing_part(checkpoint)
    found = family_in(checkpoint)
    assert found is not None
    return VisionEncoder(found[1], part)
