"""The page's client for servers with OpenAI's API, against our own gateway."""

from collections.abc import AsyncIterator, Iterator

import pytest

from lmdeploy.serve.client import GenerateRequest, TritonRequestError, TritonUnavailable
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway
from webui.conversation import Outcome, Turn, answer_last
from webui.conversation import Settings as PageSettings
from webui.openai_client import OpenAIClient

ANSWER = "The capital of France is Paris."
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def url(fake_triton: FakeTriton) -> Iterator[str]:
    with running_gateway(Settings(triton_address=fake_triton.address, api_keys=("right",))) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[OpenAIClient]:
    client = OpenAIClient(f"{url}/v1/", "right")
    yield client
    await client.close()


async def test_an_answer_is_streamed_to_its_end(client: OpenAIClient) -> None:
    request = GenerateRequest(messages=HELLO, max_new_tokens=9, temperature=0.5, top_p=0.9)
    chunks = [chunk async for chunk in client.generate(request)]
    assert "".join(chunk.text for chunk in chunks) == ANSWER
    assert chunks[-1].finish_reason == "stop"


async def test_the_page_takes_its_turns(client: OpenAIClient) -> None:
    turn = Turn("Hello")
    await answer_last(client, [turn], PageSettings("", 0.7, 0.95, 64))
    assert (turn.outcome, turn.answer) == (Outcome.COMPLETE, ANSWER)


async def test_the_server_says_its_model_and_that_it_is_there(client: OpenAIClient) -> None:
    assert await client.is_ready()
    assert await client.model_name() == "fake-model"


async def test_an_adapter_answers_who_asks_for_it(client: OpenAIClient, fake_triton: FakeTriton) -> None:
    fake_triton.adapters["pirate"] = ""
    assert await client.models() == ["fake-model", "pirate"]
    await answer_last(client, [Turn("Hello")], PageSettings("", 0.7, 0.95, 64, "pirate"))
    assert fake_triton.requests[-1].inputs["lora_name"] == "pirate"


async def test_a_wrong_key_and_a_server_that_is_away_are_told(url: str) -> None:
    for address, key in ((url, "wrong"), ("http://127.0.0.1:9", "right")):
        client = OpenAIClient(address, key)
        assert not await client.is_ready()
        with pytest.raises(TritonUnavailable):
            await client.model_name()
        await client.close()


async def test_a_refused_request_names_what_is_wrong(client: OpenAIClient) -> None:
    with pytest.raises(TritonRequestError, match="temperature"):
        async for _ in client.generate(GenerateRequest(messages=HELLO, temperature=9.0)):
            pass
