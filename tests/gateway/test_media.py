"""Images on their way through the gateway: what Triton gets, and what is refused before."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from lmdeploy.vl.constants import VISION_FILE
from lmdeploy.vl.sources import SourceRules, read_file
from openai_gateway import media
from openai_gateway.settings import Settings
from tests.support.fake_triton import TOKEN_BYTES, FakeTriton, Script
from tests.support.gateways import running_gateway
from tests.support.images import data_url, make_image
from tests.support.waiting import eventually

URL = data_url(make_image(8, 8))
SHOWN = [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "what?"}]


@pytest.fixture
def small(triton: FakeTriton) -> Iterator[httpx.Client]:
    """A gateway that fetches from one host."""
    with serving(Settings(triton_address=triton.address, allowed_media_hosts=("images.example",))) as client:
        yield client


@pytest.fixture
def model(triton: FakeTriton) -> str:
    return triton.parameters["model_name"]


def sent(triton: FakeTriton) -> list[dict[str, Any]]:
    """Return the messages that Triton got."""
    request = triton.requests[-1]
    assert request.model == "ensemble_vision"
    messages: list[dict[str, Any]] = json.loads(request.inputs["messages"])
    return messages


IMAGE = {"url": URL, "detail": "low", "max_dynamic_patch": 2, "max_slice_nums": 3, "use_image_id": False}
VIDEO = {"url": URL, "num_frames": 8, "fps": 1.5}


@pytest.mark.parametrize(("kind", "part"), [("image_url", IMAGE), ("video_url", VIDEO)])
def test_images_and_videos_of_a_chat_go_to_the_ensemble_that_sees(
    http: httpx.Client, triton: FakeTriton, model: str, kind: str, part: dict[str, Any]
) -> None:
    shown = {"type": kind, kind: part | {"min_pixels": 784, "max_pixels": 100352}}
    content = [{"type": "text", "text": "a"}, shown, {"type": "text", "text": "b"}]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert sent(triton) == [{"role": "user", "content": content}]


def test_texts_in_parts_stay_with_the_ensemble_of_texts(http: httpx.Client, triton: FakeTriton, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert triton.requests[-1].model == "ensemble"


def test_images_of_a_response(http: httpx.Client, triton: FakeTriton, model: str) -> None:
    content = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "what?"}]
    body = {"model": model, "input": [{"role": "user", "content": content}]}
    assert http.post("/v1/responses", json=body).status_code == 200
    assert sent(triton) == [{"role": "user", "content": SHOWN}]


@pytest.mark.parametrize("given", [URL, [URL]])
def test_images_of_an_interactive_prompt(http: httpx.Client, triton: FakeTriton, given: Any) -> None:
    body = {"prompt": "what?", "image_url": given, "stream": False}
    assert http.post("/v1/chat/interactive", json=body).status_code == 200
    assert sent(triton) == [{"role": "user", "content": SHOWN}]


def test_what_is_wrong_with_an_image_is_the_caller_s_error(http: httpx.Client, triton: FakeTriton, model: str) -> None:
    reason = "messages[0].content[0].image_url.url: the image is broken"
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, reason))
    response = http.post(
        "/v1/chat/completions", json={"model": model, "messages": [{"role": "user", "content": SHOWN}]}
    )
    assert (response.status_code, response.json()["error"]["message"]) == (400, reason)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (
            "http://elsewhere.example/x.png",
            "elsewhere.example: it is not among the allowed hosts (--allowed-media-domains)",
        ),
        ("file:///etc/passwd", "a file in the folder of --allowed-local-media-path"),
        ("/etc/passwd", "a file in the folder of --allowed-local-media-path"),
        ("http://images.example:99999/", "URL is none"),
    ],
)
def test_what_may_not_be_had_is_refused_by_name_and_triton_never_asked(
    small: httpx.Client, triton: FakeTriton, model: str, url: str, reason: str
) -> None:
    for kind in ("image_url", "video_url"):
        parts = [*SHOWN, {"type": kind, kind: {"url": url}}]
        body = {"model": model, "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]}
        before = len(triton.requests)
        response = small.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == f"messages[1].content[2].{kind}.url"
        assert reason in error["message"]
        assert len(triton.requests) == before


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": URL},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "image_url", "image_url": {"url": URL, "max_dynamic_patch": 0}},
        {"type": "image_url", "image_url": {"url": URL, "max_slice_nums": 0}},
        {"type": "image_url", "image_url": {"url": URL, "max_pixels": 1 << 40}},
        {"type": "image_url", "image_url": {"url": URL, "detail": "huge"}},
        {"type": "video_url", "video_url": {"url": URL, "num_frames": 129}},
        {"type": "video_url", "video_url": {"url": URL, "fps": 0}},
    ],
)
def test_a_part_of_another_form_is_refused(http: httpx.Client, model: str, part: dict[str, Any]) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": [part]}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


FILE_BYTES = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file that may be named."""
    (tmp_path / "x.png").write_bytes(b"x" * FILE_BYTES)
    return tmp_path


def naming(folder: Path, model: str, times: int) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": f"file://{folder}/x.png"}}
    return {"model": model, "messages": [{"role": "user", "content": [part] * times}]}


@pytest.fixture
def blind(tmp_path: Path) -> Path:
    """Of a model that reads text only."""
    TOKEN_BYTES.write(tmp_path / "token_bytes.bin")
    return tmp_path


@contextmanager
def serving(settings: Settings) -> Iterator[httpx.Client]:
    with running_gateway(settings) as url, httpx.Client(base_url=url, trust_env=False) as client:
        yield client


Gateway = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def gateway(triton: FakeTriton, folder: Path) -> Gateway:
    """Starts a gateway whose callers may name files of the folder."""
    return lambda **more: running_gateway(Settings(triton_address=triton.address, allowed_media_folder=folder, **more))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "interactive"])
def test_a_model_that_reads_text_only_has_nothing_fetched(
    gateway: Gateway,
    folder: Path,
    blind: Path,
    model: str,
    path: str,
    triton: FakeTriton,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []
    monkeypatch.setattr(media, "read_file", lambda url, rules: reads.append(url))
    url, text = f"file://{folder}/x.png", {"type": "text", "text": "what?"}
    response = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "what?"}]
    base64 = URL.partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": base64}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": naming(folder, model, 1),
        "/v1/responses": {"model": model, "input": [{"role": "user", "content": response}]},
        "/v1/messages": {
            "model": model,
            "max_tokens": 1,
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}, text]}],
        },
        "/api/chat": {"model": model, "messages": [{"role": "user", "content": "what?", "images": [base64]}]},
        "interactive": {"prompt": "what?", "image_url": url},
    }
    path_of = {"interactive": "/v1/chat/interactive"}
    with gateway(engine_dir=blind) as base, httpx.Client(base_url=base, trust_env=False) as http:
        reply = http.post(path_of.get(path, path), json=bodies[path])
    assert reply.status_code == 400
    assert "reads text only" in reply.text
    assert reads == []
    assert triton.requests == []


CALL = {"id": "c", "type": "function", "function": {"name": "see", "arguments": "{}"}}
BASE64 = {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]}
SEEN = {"type": "image", "source": BASE64}
PDF = {"type": "document", "source": BASE64 | {"media_type": "application/pdf"}}


def of_chat(*results: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "tool_calls": [CALL]}
    return {"messages": [{"role": "user", "content": "see"}, message, *results]}


def of_messages(returned: Any, *alongside: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "see", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": returned}, *alongside]}
    return {"max_tokens": 1, "messages": [{"role": "user", "content": "see"}, message, result]}


def of_responses(part: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    return {"input": [{"role": "user", "content": "see"}, call, output]}


IMAGE_LEFT_OUT = "[image left out: this model reads text only]"
DOCUMENT_LEFT_OUT = "[document left out: documents are not read here]"
RESULT = {"role": "tool", "tool_call_id": "c", "content": "read"}
# Path and body; what of the conversation follows the call where the model reads text only, and where it sees.
RETURNED: dict[str, Any] = {
    "tool": (
        "/v1/chat/completions",
        of_chat(RESULT | {"content": SHOWN[:1]}),
        [("tool", IMAGE_LEFT_OUT)],
        [("tool", "[shown in the next message]"), ("user", SHOWN[:1])],
    ),
    "user after tool": (
        "/v1/chat/completions",
        of_chat(RESULT, {"role": "user", "content": SHOWN}),
        [("tool", "read"), ("user", f"{IMAGE_LEFT_OUT}\nwhat?")],
        [("tool", "read"), ("user", SHOWN)],
    ),
    "tool before user": (
        "/v1/chat/completions",
        of_chat(RESULT | {"content": SHOWN[:1]}, RESULT, {"role": "user", "content": "what?"}),
        [("tool", IMAGE_LEFT_OUT), ("tool", "read"), ("user", "what?")],
        [("tool", "[shown in the next message]"), ("tool", "read"), ("user", SHOWN)],
    ),
    "tool_result": (
        "/v1/messages",
        of_messages([{"type": "text", "text": "x.png"}, SEEN]),
        [("tool", f"x.png\n{IMAGE_LEFT_OUT}")],
        [("tool", "x.png\n[shown in the next message]"), ("user", SHOWN[:1])],
    ),
    "document": (
        "/v1/messages",
        of_messages("read", PDF, {"type": "text", "text": "what?"}),
        [("tool", "read"), ("user", f"{DOCUMENT_LEFT_OUT}\nwhat?")],
        [("tool", "read"), ("user", f"{DOCUMENT_LEFT_OUT}\nwhat?")],
    ),
    "function_call_output": (
        "/v1/responses",
        of_responses({"type": "input_image", "image_url": URL}),
        [("tool", IMAGE_LEFT_OUT)],
        [("tool", "[shown in the next message]"), ("user", SHOWN[:1])],
    ),
    "file": (
        "/v1/responses",
        of_responses({"type": "input_file", "filename": "x.pdf", "file_data": "JVBERi0="}),
        [("tool", DOCUMENT_LEFT_OUT)],
        [("tool", DOCUMENT_LEFT_OUT)],
    ),
}


@pytest.mark.parametrize("sees", [False, True])
@pytest.mark.parametrize("kind", RETURNED)
def test_media_of_tool_results_end_no_conversation(
    triton: FakeTriton, model: str, blind: Path, kind: str, sees: bool
) -> None:
    path, body, unseen, seen = RETURNED[kind]
    if sees:
        (blind / VISION_FILE).touch()
    with serving(Settings(triton_address=triton.address, engine_dir=blind)) as http:
        assert http.post(path, json=body | {"model": model}).status_code == 200
        messages = json.loads(triton.requests[-1].inputs["messages"])
        assert [(message["role"], message["content"]) for message in messages[2:]] == (seen if sees else unseen)
        if path != "/v1/chat/completions" and not sees:  # what is counted is what is asked
            count = {"/v1/messages": "/v1/messages/count_tokens", "/v1/responses": "/v1/responses/input_tokens"}[path]
            assert http.post(count, json=body | {"model": model}).status_code == 200


@pytest.mark.parametrize("kind", RETURNED)
def test_media_of_tool_results_are_refused_where_that_is_wanted(
    triton: FakeTriton, model: str, blind: Path, kind: str
) -> None:
    path, body, unseen, _ = RETURNED[kind]
    settings = Settings(triton_address=triton.address, engine_dir=blind, media_in_tool_results="refuse")
    with serving(settings) as http:
        reply = http.post(path, json=body | {"model": model})
    is_document = DOCUMENT_LEFT_OUT in str(unseen)
    words = "The PDF specified was not valid" if is_document else "Could not process image"
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]


def test_the_files_of_a_request_have_this_many_bytes_together(
    gateway: Gateway, folder: Path, model: str, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "REQUEST_BYTES", 2 * FILE_BYTES)
    with gateway() as base, httpx.Client(base_url=base, trust_env=False) as http:
        assert http.post("/v1/chat/completions", json=naming(folder, model, 2)).status_code == 200
        response = http.post("/v1/chat/completions", json=naming(folder, model, 3))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[2].image_url.url"
    assert f"at most {2 * FILE_BYTES} bytes together" in response.text
    assert len(triton.requests) == 1


def test_the_files_of_a_request_are_fetched_one_after_the_other(
    gateway: Gateway, folder: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, peak = [0], [0]
    lock = threading.Lock()

    def watched(url: str, rules: SourceRules) -> bytes:
        with lock:
            reading[0] += 1
            peak[0] = max(peak[0], reading[0])
        time.sleep(0.02)  # so that another one would come meanwhile
        with lock:
            reading[0] -= 1
        return read_file(url, rules)

    monkeypatch.setattr(media, "read_file", watched)
    with gateway() as base, httpx.Client(base_url=base, trust_env=False) as http:
        assert http.post("/v1/chat/completions", json=naming(folder, model, 8)).status_code == 200
    assert peak == [1]


async def test_the_files_of_all_requests_have_this_many_bytes_together(
    gateway: Gateway, folder: Path, model: str, triton: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "PROCESS_BYTES", 30_000_000)
    monkeypatch.setenv("LMDEPLOY_FETCH_TIMEOUT", "0.3")
    (folder / "x.png").write_bytes(b"x" * 12_000_000)
    triton.script = Script(hold_after=0)
    with gateway() as base:
        async with httpx.AsyncClient(base_url=base, trust_env=False) as http:

            def post() -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(http.post("/v1/chat/completions", json=naming(folder, model, 1)))

            first = post()
            await eventually(lambda: len(triton.requests) == 1)
            full = await post()
            assert (full.status_code, full.json()["error"]["code"]) == (503, "overloaded")
            assert "retry-after" in full.headers
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            triton.script = Script()

            async def served() -> bool:
                return (await post()).status_code == 200

            await eventually(served)
