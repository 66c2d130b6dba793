"""Images on their way to the engine: the Triton models, and embeddings that are kept by content."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lmdeploy.errors import CheckpointError
from lmdeploy.model import chat_template_for
from lmdeploy.offline.multimodal import MultimodalPreparer
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.vl.encoder import VisionEncoder, digest_of
from lmdeploy.vl.tower import family_in, seeing_part
from tests.support.fake_pb_utils import Request, loaded_model
from tests.support.images import data_url, make_image
from tests.support.tiny_vision_models import make_tiny_idefics3, make_tiny_llava, make_tiny_qwen_vl

ONE, TWO = make_image(60, 40), make_image(20, 50, 1)
MESSAGES = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": data_url(ONE)}},
            {"type": "image_url", "image_url": {"url": data_url(TWO), "detail": "low"}},
            {"type": "text", "text": "what?"},
        ],
    }
]


@pytest.fixture(
    scope="module", params=[make_tiny_idefics3, partial(make_tiny_qwen_vl, kind="Qwen3VL")], ids=["idefics", "qwen"]
)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("seeing") / "model")
    return made


@pytest.fixture(scope="module")
def prepared(directory: Path) -> dict[str, Any]:
    """Outputs of preprocessing."""
    with loaded_model("preprocessing", model_path=str(directory)) as model:
        [response] = model.execute([Request(messages=json.dumps(MESSAGES))])
        assert response.error is None, response.error
        tensors = {tensor.name: tensor.array for tensor in response.output_tensors}
        [text_only] = model.execute([Request(messages=json.dumps([{"role": "user", "content": "a text"}]))])
        assert {tensor.name for tensor in text_only.output_tensors} == {"INPUT_ID", "REQUEST_INPUT_LEN", "STOP_WORDS"}
        rejected = Request(messages=json.dumps(MESSAGES))
        rejected.output_names = ["INPUT_ID", "STOP_WORDS"]
        [reply] = model.execute([rejected])
        assert "ensemble_vision" in str(reply.error)
        counted = Request(messages=json.dumps(MESSAGES))
        counted.output_names = ["INPUT_ID"]
        [reply] = model.execute([counted])
        assert reply.array("INPUT_ID").tolist() == tensors["INPUT_ID"].tolist()
    return tensors


def test_the_engine_gets_what_it_gets_offline(directory: Path, prepared: dict[str, Any]) -> None:
    images = {name: array for name, array in prepared.items() if name.startswith("IMAGE")}
    with loaded_model("vision", model_path=str(directory)) as model:
        [response] = model.execute([Request(**images)])
        assert response.error is None, response.error
        [nothing] = model.execute([Request()])
        assert nothing.output_tensors == []
        [broken] = model.execute([Request(**{**images, "IMAGE_SIZES": np.array([[5, 5]], np.int32)})])
        assert "as many bytes as IMAGE_SIZES say" in str(broken.error)
    tokenizer = Tokenizer(str(directory))
    template = chat_template_for(str(directory), None, tokenizer)
    offline = MultimodalPreparer(directory, tokenizer, template, 512, None).prepare(MESSAGES)
    assert prepared["INPUT_ID"].tolist() == [offline.ids]
    assert response.array("EMBEDDING_RANGES").tolist() == [
        [number for one in offline.rows for number in (one.begin, one.tokens)]
    ]
    assert response.array("EMBEDDING_ROW_COUNTS").tolist() == [[len(one.rows) for one in offline.rows]]
    assert response.array("EMBEDDING_DTYPE").tolist() == [[b"float32"]]
    assert response.array("EMBEDDING_DIGESTS").tobytes() == b"".join(one.digest for one in offline.rows)
    assert response.array("EMBEDDING_GRIDS").tolist() == [[side for one in offline.rows for side in one.grid]]
    assert response.array("EMBEDDING_FRAME_STEPS").tolist() == [[one.frame_step for one in offline.rows]]
    width = offline.rows[0].rows.shape[1]
    rows = np.frombuffer(response.array("EMBEDDINGS").tobytes(), np.float32).reshape(-1, width)
    assert np.array_equal(rows, np.concatenate([one.rows for one in offline.rows]))


def test_a_prompt_that_images_make_too_long_is_refused_before_they_are_looked_at(
    directory: Path, prepared: dict[str, Any]
) -> None:
    tokens = prepared["INPUT_ID"].shape[1]
    for session_len in (tokens - 1, tokens):
        config = json.dumps({"session_len": session_len})
        with loaded_model("preprocessing", model_path=str(directory), engine_config=config) as model:
            [response] = model.execute([Request(messages=json.dumps(MESSAGES))])
        expected = f"session length of {tokens - 1} tokens, got {tokens}"
        assert (expected in str(response.error)) == (session_len < tokens)


def test_an_image_for_a_model_of_texts_is_refused(default_model_dir: Path, prepared: dict[str, Any]) -> None:
    with loaded_model("preprocessing", model_path=str(default_model_dir)) as model:
        [response] = model.execute([Request(messages=json.dumps(MESSAGES))])
        assert "reads text only" in str(response.error)
    images = {name: array for name, array in prepared.items() if name.startswith("IMAGE")}
    with loaded_model("vision", model_path=str(default_model_dir)) as model:
        [response] = model.execute([Request(**images)])
        assert "reads text only" in str(response.error)


ROW_BYTES = 4 * 32 * 4  # of an image: tokens, hidden size, float32


@pytest.fixture(scope="module")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llava(tmp_path_factory.mktemp("llava") / "model")


def encoder(encoder_directory: Path, cache_bytes: int) -> VisionEncoder:
    found = family_in(encoder_directory)
    assert found is not None
    return VisionEncoder(found[1], seeing_part(encoder_directory), cache_bytes)


def encode(seeing: VisionEncoder, seed: int) -> np.ndarray:
    image = make_image(30, 30, seed)
    return seeing.rows(image, {}, digest_of(image, {})).values


def test_an_image_is_looked_at_once_while_there_is_room(encoder_directory: Path) -> None:
    seeing = encoder(encoder_directory, 2 * ROW_BYTES)
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


def test_an_image_larger_than_the_room_is_not_kept(encoder_directory: Path) -> None:
    seeing = encoder(encoder_directory, ROW_BYTES - 1)
    assert np.array_equal(encode(seeing, 0), encode(seeing, 0))
    assert seeing.computed == 2


def test_digests_report_pixels_shapes_and_options_apart() -> None:
    image = make_image(20, 30)
    other_shape = Image.frombytes("RGB", (30, 20), image.tobytes())
    shown = [(image, {}), (other_shape, {}), (image, {"detail": "low"}), (make_image(20, 30, 1), {})]
    assert len({digest_of(one, options) for one, options in shown}) == 4
    assert digest_of(image.copy(), {}) == digest_of(image, {})


def test_the_text_models_weights_are_not_loaded(encoder_directory: Path) -> None:
    sizes = {name: parameter.numel() for name, parameter in seeing_part(encoder_directory).model.named_parameters()}
    text = [size for name, size in sizes.items() if "language_model" in name or "lm_head" in name]
    assert sum(text) <= 3 * 32, "more than a row of each table and a norm"
    assert sum(sizes.values()) > 10_000


def test_a_tower_that_lacks_a_tensor_is_refused_by_name(encoder_directory: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in encoder_directory.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(encoder_directory / "model.safetensors")
    del tensors["multi_modal_projector.linear_2.bias"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"multi_modal_projector\.linear_2\.bias is missing"):
        seeing_part(tmp_path)
