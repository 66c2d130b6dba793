"""Pictures and their embeddings as tensors, from `preprocessing` to `vision` and on to the engine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmdeploy.prompts import PictureRows, PlacedPicture

NAMES = ("PICTURES", "PICTURE_SIZES", "PICTURE_DIGESTS", "PICTURE_RUNS")
_DIGEST = 32  # bytes

Tensors = dict[str, np.ndarray[Any, Any]]


def packed(pictures: Sequence[PlacedPicture]) -> Tensors:
    """Return the pictures of a prompt as tensors of model_repository/vision."""
    pixels = b"".join(picture.image.tobytes() for picture in pictures)
    runs = [(number, *run) for number, picture in enumerate(pictures) for run in picture.runs]
    options = [json.dumps(dict(picture.options)).encode() for picture in pictures]
    return {
        "PICTURES": np.frombuffer(pixels, np.uint8).reshape(1, -1),
        "PICTURE_SIZES": np.array([picture.image.size for picture in pictures], np.int32).reshape(1, -1),
        "PICTURE_OPTIONS": np.array(options, np.object_).reshape(1, -1),
        "PICTURE_DIGESTS": np.frombuffer(b"".join(picture.digest for picture in pictures), np.uint8).reshape(1, -1),
        "PICTURE_RUNS": np.array(runs, np.int32).reshape(1, -1),
    }


def unpacked(tensors: Mapping[str, np.ndarray[Any, Any] | None], options: Sequence[str]) -> list[PlacedPicture]:
    """Return the pictures that :func:`packed` made tensors of.

    Raises
    ------
    ValueError
        If the tensors do not fit together.
    """
    from PIL import Image

    pixels, sizes, digests, runs = (tensors[name] for name in NAMES)
    if pixels is None or sizes is None or digests is None or runs is None:
        raise ValueError(f"{', '.join(NAMES)} and PICTURE_OPTIONS must come together")
    content = memoryview(np.ascontiguousarray(pixels).reshape(-1).data)
    marks = digests.reshape(-1).tobytes()
    pairs, triples = sizes.reshape(-1, 2).tolist(), runs.reshape(-1, 3).tolist()
    if sum(3 * width * height for width, height in pairs) != len(content) or len(options) != len(pairs):
        raise ValueError("PICTURES must have as many bytes as PICTURE_SIZES say, and PICTURE_OPTIONS a text for each")
    result, begin = [], 0
    for number, ((width, height), option) in enumerate(zip(pairs, options, strict=True)):
        end = begin + 3 * width * height
        image = Image.frombytes("RGB", (width, height), content[begin:end])
        places = tuple((first, count) for which, first, count in triples if which == number)
        digest = marks[number * _DIGEST : (number + 1) * _DIGEST]
        result.append(PlacedPicture(image, json.loads(option), digest, places))
        begin = end
    return result


def packed_rows(rows: Sequence[PictureRows]) -> Tensors:
    """Return embeddings as tensors of model_repository/turbomind."""
    values = [np.ascontiguousarray(one.rows).reshape(-1).view(np.uint8) for one in rows]
    ranges = [(one.begin, one.tokens) for one in rows]
    return {
        "EMBEDDINGS": (values[0] if len(values) == 1 else np.concatenate(values)).reshape(1, -1),
        "EMBEDDING_RANGES": np.array(ranges, np.int32).reshape(1, -1),
        "EMBEDDING_ROW_COUNTS": np.array([one.rows.shape[0] for one in rows], np.int32).reshape(1, -1),
        "EMBEDDING_DIGESTS": np.frombuffer(b"".join(one.digest for one in rows), np.uint8).reshape(1, -1),
        "EMBEDDING_GRIDS": np.array([one.grid for one in rows], np.int32).reshape(1, -1),
        "EMBEDDING_FRAME_STEPS": np.array([one.frame_step for one in rows], np.float32).reshape(1, -1),
        "EMBEDDING_DTYPE": np.array([[rows[0].dtype.encode()]], np.object_),
    }
