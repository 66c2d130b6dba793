"""Invalid text is refused with 400, in the form of the API, wherever it is and however long the body is."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from openai_gateway.settings import Settings
from tests.abuse.bodies import MODEL
from tests.abuse.texts import SAMPLES, broken_texts
from tests.support.fake_triton import TOKEN_BYTES, FakeTriton
from tests.support.gateways import running_gateway

_LONG = b" " * 200_000  # is parsed by another parser
_FORMS = {"/v1/messages": ("type", "error"), "/api/": ("error",)}  # of other APIs


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeTriton]:
    with FakeTriton(MODEL) as made:
        yield made


@pytest.fixture(scope="module")
def http(fake: FakeTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    engine_dir = tmp_path_factory.mktemp("engine")
    TOKEN_BYTES.write(engine_dir / "token_bytes.bin")
    settings = Settings(
        triton_address=fake.address,
        model_name=MODEL,
        engine_dir=engine_dir,
        files_dir=tmp_path_factory.mktemp("files"),
        admin_keys=("k",),
    )
    headers = {"content-type": "application/json", "authorization": "Bearer k"}
    with running_gateway(settings) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("path", SAMPLES)
def test_what_is_no_text_is_refused(http: httpx.Client, fake: FakeTriton, path: str) -> None:
    fake.reset()
    members = next((form for start, form in _FORMS.items() if path.startswith(start)), ("error", "object", "message"))
    for number, body in enumerate(broken_texts(path)):
        response = http.post(path, content=_LONG * (number % 2) + body)
        assert response.status_code == 400, (body, response.text)
        error = response.json()
        assert set(members) <= set(error), (body, error)
        message = error["message"] if "message" in error else error["error"]
        assert "UTF-8" in json.dumps(message) or "no text" in json.dumps(message), (body, message)
    assert fake.requests == []


def test_every_path_that_takes_a_body_has_a_sample(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    of_others = {"/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/input_tokens"}
    of_administrators = {"/api/pull"}
    without_body = {"/sleep", "/wake_up"}
    others = (
        {"/v1/files", "/v1/batches/{batch_id}/cancel", "/v1/responses/{response_id}/cancel"}
        | of_others
        | of_administrators
        | without_body
    )
    assert {path for path, methods in paths.items() if "post" in methods} == set(SAMPLES) | others
