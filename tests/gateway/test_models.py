import asyncio
from typing import cast

import httpx
import openai
import pytest

from lmdeploy.serve.client import TritonClient, TritonUnavailable
from openai_gateway.models import ServedModel, Traits
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway
from tests.support.waiting import eventually


def test_the_engine_s_model_is_listed(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert (card.id, card.object, card.owned_by) == (MODEL, "model", "lmdeploy")
    assert client.models.retrieve(MODEL) == card
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_health_is_empty_when_ready_and_503_when_not(http: httpx.Client, triton: FakeTriton) -> None:
    response = http.get("/health")
    assert (response.status_code, response.content) == (200, b"")
    triton.ready = False
    assert http.get("/health").status_code == 503


@pytest.mark.parametrize("model", ["turbomind", "preprocessing"])
def test_health_is_503_while_a_model_does_not_respond(
    http: httpx.Client, triton: FakeTriton, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton.hangs = model
    with monkeypatch.context() as patch:
        patch.setattr("lmdeploy.serve.client._READY_TIMEOUT", 0.2)
        assert http.get("/health").status_code == 503
    triton.hangs = ""
    assert http.get("/health").status_code == 200


def test_a_gateway_serves_under_the_name_it_is_given_and_starts_before_triton() -> None:
    with (
        running_gateway(Settings(triton_address="127.0.0.1:1", model_name="mine")) as url,
        httpx.Client(base_url=url, trust_env=False) as http,
    ):
        assert http.get("/v1/models").json()["data"][0]["id"] == "mine"
        assert http.get("/health").status_code == 503
        body = {"model": "mine", "messages": [{"role": "user", "content": "a"}], "stream": True}
        response = http.post("/v1/chat/completions", json=body)
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "server_error"


class SlowEngine:
    """Says its length of context when it may, or nothing."""

    def __init__(self) -> None:
        self.requests, self.may_say, self.says = 0, asyncio.Event(), 4096

    async def context_len(self) -> int:
        self.requests += 1
        await self.may_say.wait()
        if not self.says:
            raise TritonUnavailable("busy")
        return self.says


async def test_callers_at_one_time_and_after_an_error_get_the_context_length_the_engine_said() -> None:
    engine = SlowEngine()
    model = ServedModel("m", cast(TritonClient, engine), None, Traits())
    first, second = asyncio.create_task(model.context_len()), asyncio.create_task(model.context_len())
    await eventually(lambda: engine.requests == 1)
    engine.may_say.set()
    assert (await first, await second, engine.requests) == (4096, 4096, 1)
    model._context_known_until = engine.says = 0
    assert (await model.context_len(), engine.requests) == (4096, 2)
