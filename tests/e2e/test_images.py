"""A vision-language model on the real tritonserver and gateway responds as the offline pipeline does."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import lmdeploy.vl.fetching as fetching
from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.vl import load_video
from openai_gateway.settings import Settings
from tests.support.gateways import openai_client, running_gateway
from tests.support.http_host import NOT_FOUND, Reply, running_host
from tests.support.images import data_url, file_of, make_image
from tests.support.mllama_reference import make_tiny_mllama
from tests.support.servers import generated, running_triton
from tests.support.tiny_vision_models import make_tiny_qwen_vl

ONE, TWO = make_image(60, 40), make_image(30, 80, 1)
FRAMES = [make_image(56, 84, seed) for seed in range(6)]
ENGINE: dict[str, Any] = {"device": "cpu", "session_len": 256, "cache_max_entry_count": 64, "cache_block_seq_len": 16}
TOKENS = 8
GREEDY = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that needs positions of three axes, deeper features and times of frames."""
    made = make_tiny_qwen_vl(tmp_path_factory.mktemp("seeing") / "tiny-qwen", kind="Qwen3VL")
    resolve(str(made))  # once, before four processes ask for it
    return made


@pytest.fixture(scope="module")
def triton(directory: Path) -> Iterator[TritonServer]:
    with running_triton(directory, enable_prefix_caching=True, **ENGINE) as server:
        yield server


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """A server with one image."""
    with running_host(lambda asked: Reply(file_of(ONE)) if asked.path == "/one.png" else NOT_FOUND) as host:
        yield host.url


@pytest.fixture(scope="module")
def url(triton: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("allowed")
    settings = Settings(
        triton_address=triton.grpc_address,
        model_name="tiny-qwen",
        allowed_media_hosts=("*",),
        allowed_media_folder=folder,
    )
    with running_gateway(settings) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai_client(url) as made:
        yield made


def content(text: str, *urls: str) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def complete(client: openai.OpenAI, messages: Any, **more: Any) -> str:
    response = client.chat.completions.create(
        model="tiny-qwen", messages=messages, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}, **more
    )
    return response.choices[0].message.content or ""


@pytest.fixture(scope="module")
def offline(directory: Path) -> dict[str, str]:
    """Responses of the model in this process."""
    prompts = {"one": ("what?", ONE), "two": ("what?", TWO), "both": ("what?", [ONE, TWO]), "text": "only a text"}
    prompts |= {f"{fps} fps": ("what?", load_video(FRAMES, fps=fps)) for fps in (2, 0.5)}
    with pipeline(str(directory), TurbomindEngineConfig(dtype="float32", **ENGINE)) as pipe:
        responses = {name: pipe(prompt, GREEDY).text for name, prompt in prompts.items()}
    assert len(set(responses.values())) == 6, "images or times make no difference"
    return responses


def seen_by(server: TritonServer, messages: Any) -> str:
    """Return the text that a server's model with images generates."""
    return str(generated(server, messages, "ensemble_vision", max_new_tokens=TOKENS, ignore_eos=True)["text_output"])


def test_rows_that_are_looked_at_reach_the_engine(tmp_path: Path) -> None:
    model = make_tiny_mllama(tmp_path / "tiny-seeing")
    with pipeline(str(model), TurbomindEngineConfig(dtype="float32", **ENGINE)) as pipe:
        expected = [pipe(("what?", one), GREEDY).text for one in (ONE, TWO)]
    assert expected[0] != expected[1], "the image makes no difference"
    with running_triton(model, **ENGINE) as server:
        assert [seen_by(server, content("what?", data_url(one))) for one in (ONE, TWO)] == expected


def test_times_of_frames_reach_the_engine(url: str, offline: dict[str, str]) -> None:
    pictures = ",".join(data_url(frame).partition(",")[2] for frame in FRAMES)
    animation = file_of(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:], duration=2000)

    def respond(video: str) -> httpx.Response:
        parts = [{"type": "video_url", "video_url": {"url": video}}, {"type": "text", "text": "what?"}]
        return _post(url, [{"role": "user", "content": parts}])

    for fps, video in {2: f"data:video/png;base64,{pictures}", 0.5: data_url(animation)}.items():
        assert respond(video).json()["choices"][0]["message"]["content"] == offline[f"{fps} fps"]
    rejected = respond(data_url(b"\0\0\0\x18ftypmp42", "video/mp4"))
    assert rejected.status_code == 400
    assert "MP4 or QuickTime file" in rejected.json()["error"]["message"]


def test_images_and_texts_at_once_get_their_own_responses(client: openai.OpenAI, offline: dict[str, str]) -> None:
    request = {
        "one": content("what?", data_url(ONE)),
        "two": content("what?", data_url(TWO)),
        "both": content("what?", data_url(ONE), data_url(TWO)),
        "text": [{"role": "user", "content": "only a text"}],
    }
    names = list(request) * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda name: complete(client, request[name]), names)) == [offline[name] for name in names]


def test_generate_takes_images_in_plain_json(triton: TritonServer, offline: dict[str, str]) -> None:
    image = content("what?", data_url(ONE))
    assert seen_by(triton, image) == offline["one"]
    assert seen_by(triton, [{"role": "user", "content": "only a text"}]) == offline["text"]
    body = {"messages": json.dumps(image), "max_new_tokens": TOKENS}
    url = f"http://{triton.http_address}/v2/models/ensemble/generate"
    rejected = httpx.post(url, json=body, trust_env=False)
    assert rejected.status_code == 400
    assert "ensemble_vision" in rejected.json()["error"]


def test_images_come_from_allowed_places(
    triton: TritonServer, host: str, offline: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two.png").write_bytes(file_of(TWO))
    here = Settings(
        triton_address=triton.grpc_address,
        model_name="tiny-qwen",
        allowed_media_hosts=("127.0.0.1",),
        allowed_media_folder=tmp_path,
    )
    with running_gateway(here) as gateway:
        named = _post(gateway, content("what?", f"file://{tmp_path}/two.png"))
        assert named.json()["choices"][0]["message"]["content"] == offline["two"]
        with monkeypatch.context() as patch:
            patch.setattr(fetching, "is_public", lambda address: True)  # as if this machine were elsewhere
            fetched = _post(gateway, content("what?", f"{host}/one.png"))
            assert fetched.json()["choices"][0]["message"]["content"] == offline["one"]
            missing = _post(gateway, content("what?", f"{host}/none.png"))
            assert missing.status_code == 400
            assert "answered 404" in missing.json()["error"]["message"]
        response = _post(gateway, content("what?", f"{host}/one.png"))
        assert response.status_code == 400
        assert "private network" in response.json()["error"]["message"]
        response = _post(gateway, content("what?", "http://elsewhere.example/one.png"))
        assert "not among the allowed hosts" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("data:image/png;base64,aGVsbG8=", "must be an image"),
        ("data:image/png;base64,#", "no base64"),
        (data_url(file_of(ONE)[:-40]), "broken"),
        (data_url(make_image(2, 2).resize((1, 1))), "at least 2 pixels"),
        ("http://127.0.0.1:9/x.png", "private network"),
        ("http://169.254.169.254/latest/meta-data", "private network"),
    ],
)
def test_a_bad_image_is_a_400_that_names_it_and_hurts_nobody(
    url: str, client: openai.OpenAI, offline: dict[str, str], source: str, reason: str
) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    response = _post(url, messages + content("what?", data_url(ONE), source))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert reason in error["message"]
    assert "messages" in error["message"]
    assert "2" in error["message"].partition("content")[0]
    assert "1" in error["message"].partition("content")[2][:4]
    assert complete(client, content("what?", data_url(ONE))) == offline["one"]


def test_more_images_than_fit_are_refused(url: str) -> None:
    many = _post(url, content("what?", *[data_url(ONE)] * 65))
    assert many.status_code == 400
    assert "at most 64 images" in many.json()["error"]["message"]
    long = _post(url, content("what?", *[data_url(ONE)] * 64))
    assert long.status_code == 400
    assert "maximum context length" in long.json()["error"]["message"]


def test_a_typed_placeholder_is_text(url: str, client: openai.OpenAI) -> None:
    response = _post(url, [{"role": "user", "content": "what is <|image_pad|>?"}])
    assert response.status_code == 200
    both = _post(url, content("what is <|image_pad|>?", data_url(ONE)))
    assert both.status_code == 200
    one = _post(url, content("what is ?", data_url(ONE)))
    assert both.json()["usage"]["prompt_tokens"] == one.json()["usage"]["prompt_tokens"] + len("<|image_pad|>")


def _post(url: str, messages: Any) -> httpx.Response:
    body = {"model": "tiny-qwen", "messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False)
