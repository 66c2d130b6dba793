"""Requests take the sampling parameters that a checkpoint recommends, where they do not set them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway

HELLO = [{"role": "user", "content": "Hello"}]
FILE = {"do_sample": True, "temperature": 0.25, "top_p": 0.875, "repetition_penalty": 1.0625, "eos_token_id": 2}
RECOMMENDED = {"temperature": 0.25, "top_p": 0.875, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0625}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": HELLO},
    "/v1/completions": {"model": MODEL, "prompt": "Hello"},
    "/v1/responses": {"model": MODEL, "input": "Hello"},
    "/v1/messages": {"model": MODEL, "messages": HELLO, "max_tokens": 8},
    "/v1/chat/interactive": {"prompt": "Hello"},
    "/api/chat": {"model": MODEL, "messages": HELLO, "stream": False},
}


@contextmanager
def gateway(fake: FakeTriton, **settings: Any) -> Iterator[httpx.Client]:
    with (
        running_gateway(Settings(triton_address=fake.address, **settings)) as url,
        httpx.Client(base_url=url, trust_env=False) as http,
    ):
        yield http


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("engine")
    (made / "tokenizer").mkdir()
    (made / "tokenizer" / "generation_config.json").write_text(json.dumps(FILE))
    return made


def sampling(triton: FakeTriton) -> dict[str, float]:
    (request,) = triton.requests
    return {name: value for name, value in request.inputs.items() if name in RECOMMENDED}


@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_takes_them(http: httpx.Client, triton: FakeTriton, path: str) -> None:
    assert http.post(path, json=BODIES[path]).status_code == 200
    assert sampling(triton) == RECOMMENDED


@pytest.mark.parametrize("path", list(BODIES)[:5])
def test_what_a_request_sets_wins(http: httpx.Client, triton: FakeTriton, path: str) -> None:
    http.post(path, json=BODIES[path] | {"temperature": 1.5, "top_k": 5})
    assert sampling(triton) == RECOMMENDED | {"temperature": 1.5, "top_k": 5}


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"top_k": 1}])
def test_greedy_requests_take_none(http: httpx.Client, triton: FakeTriton, greedy: dict[str, Any]) -> None:
    http.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"] | greedy)
    assert "repetition_penalty" not in sampling(triton)
    assert sampling(triton).items() >= greedy.items()


def test_clients_see_them(http: httpx.Client) -> None:
    (card,) = http.get("/v1/models").json()["data"]
    assert card["sampling_defaults"] == http.get(f"/v1/models/{MODEL}").json()["sampling_defaults"] == RECOMMENDED
    shown = ollama.Client(str(http.base_url), trust_env=False).show(MODEL)
    assert {"temperature 0.25", "repeat_penalty 1.0625"} <= set(shown.parameters.split("\n"))


def test_none_leaves_the_servers_own(triton: FakeTriton, engine_dir: Path) -> None:
    with gateway(triton, engine_dir=engine_dir, generation_config="none") as http:
        http.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"])
        (card,) = http.get("/v1/models").json()["data"]
    expected = {"temperature": pytest.approx(0.7), "top_p": 1.0, "top_k": 40}
    assert sampling(triton) == expected
    assert card["sampling_defaults"] == expected


def test_a_folder_is_for_gateways_without_the_model(triton: FakeTriton, engine_dir: Path) -> None:
    with gateway(triton, generation_config=str(engine_dir / "tokenizer")) as http:
        http.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"])
    assert sampling(triton) == RECOMMENDED
