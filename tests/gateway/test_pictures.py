"""Pictures on their way through the gateway: what Triton gets, and what is refused before."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway
from tests.support.pictures import data_url, picture

URL = data_url(picture(8, 8))
SHOWN = [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "what?"}]


@pytest.fixture
def small(triton: FakeTriton) -> Iterator[httpx.Client]:
    """A gateway that fetches from one host."""
    settings = Settings(triton_address=triton.address, allowed_media_hosts=("pictures.example",))
    with running_gateway(settings) as url, httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def model(triton: FakeTriton) -> str:
    return triton.parameters["model_name"]


def sent(triton: FakeTriton) -> list[dict[str, Any]]:
    """Return the messages that Triton got."""
    request = triton.requests[-1]
    assert request.model == "ensemble_pictures"
    messages: list[dict[str, Any]] = json.loads(request.inputs["messages"])
    return messages


def test_pictures_of_a_chat_go_to_the_ensemble_that_sees(http: httpx.Client, triton: FakeTriton, model: str) -> None:
    image = {"url": URL, "detail": "low", "max_dynamic_patch": 2, "max_slice_nums": 3, "use_image_id": False}
    image |= {"min_pixels": 784, "max_pixels": 100352}
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": image}, {"type": "text", "text": "b"}]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert sent(triton) == [{"role": "user", "content": content}]


def test_videos_of_a_chat_go_to_the_ensemble_that_sees(http: httpx.Client, triton: FakeTriton, model: str) -> None:
    video = {"url": URL, "num_frames": 8, "fps": 1.5, "min_pixels": 784, "max_pixels": 100352}
    content = [{"type": "video_url", "video_url": video}, {"type": "text", "text": "b"}]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert sent(triton) == [{"role": "user", "content": content}]


def test_texts_in_parts_stay_with_the_ensemble_of_texts(http: httpx.Client, triton: FakeTriton, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert triton.requests[-1].model == "ensemble"


def test_pictures_of_a_response(http: httpx.Client, triton: FakeTriton, model: str) -> None:
    content = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "what?"}]
    body = {"model": model, "input": [{"role": "user", "content": content}]}
    assert http.post("/v1/responses", json=body).status_code == 200
    assert sent(triton) == [{"role": "user", "content": SHOWN}]


@pytest.mark.parametrize("given", [URL, [URL]])
def test_pictures_of_an_interactive_prompt(http: httpx.Client, triton: FakeTriton, given: Any) -> None:
    body = {"prompt": "what?", "image_url": given, "stream": False}
    assert http.post("/v1/chat/interactive", json=body).status_code == 200
    assert sent(triton) == [{"role": "user", "content": SHOWN}]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://elsewhere.example/x.png", "elsewhere.example: it is not among the allowed hosts"),
        ("file:///etc/passwd", "a file in the allowed folder"),
        ("/etc/passwd", "a file in the allowed folder"),
        ("http://pictures.example:99999/", "URL is none"),
    ],
)
def test_what_may_not_be_had_is_refused_by_name_and_triton_never_asked(
    small: httpx.Client, triton: FakeTriton, model: str, url: str, reason: str
) -> None:
    for kind in ("image_url", "video_url"):
        parts = [*SHOWN, {"type": kind, kind: {"url": url}}]
        body = {"model": model, "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]}
        before = len(triton.requests)
        answer = small.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == f"messages[1].content[2].{kind}.url"
        assert reason in error["message"]
        assert len(triton.requests) == before


@pytest.mark.parametrize(
    ("part", "status"),
    [
        ({"type": "image_url", "image_url": URL}, 422),
        ({"type": "image_url"}, 422),
        ({"type": "image_url", "image_url": {"url": 5}}, 422),
        ({"type": "image_url", "image_url": {"url": URL, "max_dynamic_patch": 0}}, 400),
        ({"type": "image_url", "image_url": {"url": URL, "max_slice_nums": 0}}, 400),
        ({"type": "image_url", "image_url": {"url": URL, "max_pixels": 1 << 40}}, 400),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "huge"}}, 400),
        ({"type": "video_url", "video_url": {"url": URL, "num_frames": 129}}, 400),
        ({"type": "video_url", "video_url": {"url": URL, "fps": 0}}, 400),
    ],
)
def test_a_part_of_another_form_is_refused(http: httpx.Client, model: str, part: dict[str, Any], status: int) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": [part]}]}
    assert http.post("/v1/chat/completions", json=body).status_code == status
