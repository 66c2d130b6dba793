"""Tensors of images and embeddings, from `preprocessing` to `vision` and the engine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmdeploy.prompts import ImageRows, PromptImage

NAMES = ("IMAGES", "IMAGE_SIZES", "IMAGE_DIGESTS", "IMAGE_RUNS")
_DIGEST = 32  # bytes

Tensors = dict[str, np.ndarray[Any, Any]]


def packed(images: Sequence[PromptImage]) -> Tensors:
    """Return the images of a prompt as tensors of model_repository/vision."""
    pixels = b"".join(image.image.tobytes() for image in images)
    runs = [(number, *run) for number, image in enumerate(images) for run in image.runs]
    options = [json.dumps(dict(image.options)).encode() for image in images]
    return {
        "IMAGES": np.frombuffer(pixels, np.uint8).reshape(1, -1),
        "IMAGE_SIZES": np.array([image.image.size for image in images], np.int32).reshape(1, -1),
        "IMAGE_OPTIONS": np.array(options, np.object_).reshape(1, -1),
        "IMAGE_DIGESTS": np.frombuffer(b"".join(image.digest for image in images), np.uint8).reshape(1, -1),
        "IMAGE_RUNS": np.array(runs, np.int32).reshape(1, -1),
    }


def unpacked(tensors: Mapping[str, np.ndarray[Any, Any] | None], options: Sequence[str]) -> list[PromptImage]:
    """Return the images that :func:`packed` made tensors of; raise `ValueError` if the tensors do not fit together."""
    from PIL import Image

    pixels, sizes, digests, runs = (tensors[name] for name in NAMES)
    if pixels is None or sizes is None or digests is None or runs is None:
        raise ValueError(f"{', '.join(NAMES)} and IMAGE_OPTIONS must come together")
    content = memoryview(np.ascontiguousarray(pixels).reshape(-1).data)
    joined = digests.reshape(-1).tobytes()
    pairs, triples = sizes.reshape(-1, 2).tolist(), runs.reshape(-1, 3).tolist()
    if sum(3 * width * height for width, height in pairs) != len(content) or len(options) != len(pairs):
        raise ValueError("IMAGES must have as many bytes as IMAGE_SIZES say, and IMAGE_OPTIONS a text for each")
    result, begin = [], 0
    for number, ((width, height), option) in enumerate(zip(pairs, options, strict=True)):
        end = begin + 3 * width * height
        image = Image.frombytes("RGB", (width, height), content[begin:end])
        spans = tuple((first, count) for which, first, count in triples if which == number)
        digest = joined[number * _DIGEST : (number + 1) * _DIGEST]
        result.append(PromptImage(image, json.loads(option), digest, spans))
        begin = end
    return result


def packed_rows(rows: Sequence[ImageRows]) -> Tensors:
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
