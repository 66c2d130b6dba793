"""The manual's examples of vision-language models run as written, with tiny models and drawn images."""

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from lmdeploy import ChatTemplateConfig, GenerationConfig, TurbomindEngineConfig, VisionConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.vl import load_image
from lmdeploy.vl.constants import IMAGE_TOKEN
from lmdeploy.vl.utils import encode_image_base64
from tests.support.cogvlm_reference import make_tiny_cogvlm
from tests.support.images import make_image
from tests.support.minicpmv_reference import make_tiny_minicpmv
from tests.support.tiny_own_layouts import make_tiny_internvl_chat
from tests.support.xcomposer_reference import make_tiny_xcomposer

SETTINGS = TurbomindEngineConfig(dtype="float32", session_len=512, cache_max_entry_count=96, num_tokens_per_iter=64)
SHORT = GenerationConfig(top_k=1, max_new_tokens=4)
MAKERS: dict[str, Callable[[Path], Path]] = {
    "internvl2-8b": make_tiny_internvl_chat,
    "minicpm-v-2_6": make_tiny_minicpmv,
    "internlm-xcomposer2d5-7b": make_tiny_xcomposer,
    "cogvlm2-llama3-chat-19b": make_tiny_cogvlm,
}


@pytest.fixture(scope="module")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], AsyncEngine]]:
    open_ones: dict[str, AsyncEngine] = {}

    def opened(name: str) -> AsyncEngine:
        if name not in open_ones:
            folder = MAKERS[name](tmp_path_factory.mktemp(name) / name)
            open_ones[name] = pipeline(str(folder), backend_config=SETTINGS)
        return open_ones[name]

    yield opened
    for pipe in open_ones.values():
        pipe.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    paths = [folder / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        make_image(40, 60, number).save(path)
    return [str(path) for path in paths]


@pytest.mark.parametrize("name", MAKERS)
def test_an_image_is_described_and_a_conversation_goes_on(
    name: str, pipes: Callable[[str], AsyncEngine], files: list[str]
) -> None:
    pipe = pipes(name)
    image = load_image(files[0])
    response = pipe(("describe this image", image), gen_config=SHORT)
    assert response.generate_token_len > 0
    assert pipe(("describe this image", files[0]), gen_config=SHORT).text == response.text
    gen_config = GenerationConfig(top_k=40, top_p=0.8, temperature=0.8, max_new_tokens=4)
    sess = pipe.chat(("describe this image", image), gen_config=gen_config)
    assert sess.response.text is not None
    seen = sess.response.input_token_len
    sess = pipe.chat("What is the woman doing?", session=sess, gen_config=gen_config)
    assert sess.response.history_token_len >= seen
    sess.close()


def test_several_images_and_batches(pipes: Callable[[str], AsyncEngine], files: list[str]) -> None:
    pipe = pipes("internvl2-8b")
    images = [load_image(file) for file in files[:2]]
    both = pipe(("describe these images", images), gen_config=SHORT)
    prompts = [("describe this image", load_image(file)) for file in files[:2]]
    response = pipe(prompts, gen_config=SHORT)
    assert [one.text for one in response] == [pipe(prompt, gen_config=SHORT).text for prompt in prompts]
    assert both.input_token_len > max(one.input_token_len for one in response)
    logits = pipe(prompts[0], gen_config=GenerationConfig(output_logits="generation", max_new_tokens=2)).logits
    assert logits.shape == (2, pipe.engine.directory.spec.vocab_size)


@pytest.mark.parametrize(
    "text", [f"{IMAGE_TOKEN}{IMAGE_TOKEN}\nDescribe", f"Image-1: {IMAGE_TOKEN}\nImage-2: {IMAGE_TOKEN}\n"]
)
def test_messages_of_internvl_say_where_images_are(
    text: str, pipes: Callable[[str], AsyncEngine], files: list[str]
) -> None:
    pipe = pipes("internvl2-8b")
    messages = [
        {"role": "user", "content": [
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"max_dynamic_patch": 1, "url": files[0]}},
            {"type": "image_url", "image_url": {"max_dynamic_patch": 12, "url": files[1]}},
        ]}
    ]  # fmt: skip
    out = pipe(messages, gen_config=SHORT)
    assert len(pipe.prepare(messages).images) == 2
    messages.append({"role": "assistant", "content": out.text})
    messages.append({"role": "user", "content": "What are the similarities and differences between these two images."})
    assert pipe(messages, gen_config=SHORT).input_token_len > out.input_token_len


@pytest.mark.parametrize(
    ("name", "options"),
    [("internvl2-8b", {"max_dynamic_patch": 1}), ("minicpm-v-2_6", {"use_image_id": False, "max_slice_nums": 2})],
)
def test_frames_of_a_video_are_images(
    name: str, options: dict[str, object], pipes: Callable[[str], AsyncEngine]
) -> None:
    pipe = pipes(name)
    imgs = [make_image(30, 40, number) for number in range(3)]
    question = ""
    for i in range(len(imgs)):
        question = question + f"Frame{i + 1}: {IMAGE_TOKEN}\n"
    question += "What is the red panda doing?"
    content: list[dict[str, object]] = [{"type": "text", "text": question}]
    for img in imgs:
        url = f"data:image/jpeg;base64,{encode_image_base64(img)}"
        content.append({"type": "image_url", "image_url": {**options, "url": url}})
    messages = [{"role": "user", "content": content}]
    out = pipe(messages, gen_config=SHORT)
    assert len(pipe.prepare(messages).images) == len(imgs)
    messages.append({"role": "assistant", "content": out.text})
    messages.append({"role": "user", "content": "Describe this video in detail. Don't repeat."})
    assert pipe(messages, gen_config=SHORT).generate_token_len > 0


def test_three_cars_and_a_web_page_by_xcomposer(pipes: Callable[[str], AsyncEngine], files: list[str]) -> None:
    pipe = pipes("internlm-xcomposer2d5-7b")
    query = f"Image1 {IMAGE_TOKEN}; Image2 {IMAGE_TOKEN}; Image3 {IMAGE_TOKEN}; I want to buy a car"
    images = [load_image(file) for file in files]
    config = GenerationConfig(top_k=0, top_p=0.8, random_seed=89247526689433939, max_new_tokens=4)
    assert pipe((query, images), gen_config=config).generate_token_len > 0


def test_a_web_page_is_written_without_the_meta_instruction(tmp_path: Path) -> None:
    folder = make_tiny_xcomposer(tmp_path / "internlm-xcomposer2d5-7b-web")
    template = ChatTemplateConfig("internlm-xcomposer2d5")
    with pipeline(str(folder), backend_config=SETTINGS, chat_template_config=template) as pipe:
        before = pipe.prepare("A website").ids
        pipe.chat_template.meta_instruction = None
        after = pipe.prepare("A website").ids
        assert len(after) < len(before)
        assert pipe("A website", gen_config=SHORT).input_token_len == len(after)


def test_vision_settings_and_a_chosen_template(tmp_path: Path, files: list[str]) -> None:
    folder = make_tiny_internvl_chat(tmp_path / "local_model_folder")
    vision_config = VisionConfig(max_batch_size=16)
    template = ChatTemplateConfig(model_name="internvl2_5")
    with pipeline(
        str(folder), backend_config=SETTINGS, chat_template_config=template, vision_config=vision_config
    ) as pipe:
        response = pipe((f"describe this image{IMAGE_TOKEN}", load_image(files[0])), gen_config=SHORT)
    assert response.generate_token_len > 0


def test_an_image_as_text_is_the_same_image(tmp_path: Path) -> None:
    image = make_image(20, 30)
    decoded = Image.open(io.BytesIO(base64.b64decode(encode_image_base64(image))))
    assert decoded.size == image.size
    image.save(tmp_path / "a.png")
    for given in (
        str(tmp_path / "a.png"),
        "data:image/png;base64," + base64.b64encode((tmp_path / "a.png").read_bytes()).decode(),
    ):
        assert load_image(given).tobytes() == image.tobytes()
