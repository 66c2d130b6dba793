"""Embeddings are kept by content, within a bound, and computed by a part without the text model's weights."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmdeploy.errors import CheckpointError
from lmdeploy.vl.encoder import VisionEncoder, digest_of
from lmdeploy.vl.tower import family_in, seeing_part
from tests.support.images import make_image
from tests.support.tiny_vision_models import make_tiny_llava

ROW_BYTES = 4 * 32 * 4  # of an image: tokens, hidden size, float32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llava(tmp_path_factory.mktemp("llava") / "model")


def encoder(directory: Path, cache_bytes: int) -> VisionEncoder:
    found = family_in(directory)
    assert found is not None
    return VisionEncoder(found[1], seeing_part(directory), cache_bytes)


def encode(seeing: VisionEncoder, seed: int) -> np.ndarray:
    image = make_image(30, 30, seed)
    return seeing.rows(image, {}, digest_of(image, {})).values


def test_an_image_is_looked_at_once_while_there_is_room(directory: Path) -> None:
    seeing = encoder(directory, 2 * ROW_BYTES)
    first = encode(seeing, 0)
    assert np.array_equal(encode(seeing, 0), first)
    assert seeing.computed == 1
    encode(seeing, 1)
    encode(seeing, 0)  # used last
    encode(seeing, 2)  # the second one goes
    assert seeing.computed == 3
    assert np.array_equal(encode(seeing, 0), first)
    assert seeing.computed == 3
    encode(seeing, 1)
    assert seeing.computed == 4


def test_an_image_larger_than_the_room_is_not_kept(directory: Path) -> None:
    seeing = encoder(directory, ROW_BYTES - 1)
    assert np.array_equal(encode(seeing, 0), encode(seeing, 0))
    assert seeing.computed == 2


def test_digests_report_pixels_shapes_and_options_apart() -> None:
    image = make_image(20, 30)
    other_shape = Image.frombytes("RGB", (30, 20), image.tobytes())
    shown = [(image, {}), (other_shape, {}), (image, {"detail": "low"}), (make_image(20, 30, 1), {})]
    assert len({digest_of(one, options) for one, options in shown}) == 4
    assert digest_of(image.copy(), {}) == digest_of(image, {})


def test_the_text_models_weights_are_not_loaded(directory: Path) -> None:
    sizes = {name: parameter.numel() for name, parameter in seeing_part(directory).model.named_parameters()}
    text = [size for name, size in sizes.items() if "language_model" in name or "lm_head" in name]
    assert sum(text) <= 3 * 32, "more than a row of each table and a norm"
    assert sum(sizes.values()) > 10_000


def test_a_tower_that_lacks_a_tensor_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in directory.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    del tensors["multi_modal_projector.linear_2.bias"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"multi_modal_projector\.linear_2\.bias is missing"):
        seeing_part(tmp_path)
