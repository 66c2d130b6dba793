"""The page's client for servers with OpenAI's API, against our own gateway."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway
from tests.support.http_host import Reply, running_host
from webui.conversation import Outcome, Turn
from webui.conversations import Conversation
from webui.generating import generate_last
from webui.openai_client import HttpError, OpenAIClient, ServerUnavailable
from webui.settings import Settings as PageSettings

REPLY = "The capital of France is Paris."
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


async def test_a_later_question_reports_the_tokens_of_the_responses(
    client: OpenAIClient, fake_triton: FakeTriton
) -> None:
    turns = [Turn("Hello")]
    await generate_last(client, turns, PageSettings())
    turns.append(Turn("And?"))
    await generate_last(client, turns, PageSettings())
    assert (turns[0].response.outcome, turns[0].response.text) == (Outcome.COMPLETE, REPLY)
    response = json.loads(fake_triton.requests[-1].inputs["messages"])[1]
    assert response == {"role": "assistant", "content": REPLY, "token_ids": turns[0].response.token_ids}
    assert len(response["token_ids"]) == turns[0].response.token_count > 0
    assert REPLY in str(kept := Conversation(turns=turns).to_json())
    assert "token_ids" not in str(kept)


@pytest.mark.parametrize(("reported", "takes"), [({"vision": True}, True), ({"vision": False}, False), (None, True)])
async def test_questions_have_images_unless_the_server_says_no(reported: object, takes: bool) -> None:
    with running_host(lambda _: Reply(json.dumps({"modalities": reported}).encode())) as host:
        client = OpenAIClient(host.url, None)
        assert await client.takes_images() is takes
        await client.close()
    assert host.visits == ["GET /props"]


async def test_a_wrong_key_and_a_server_that_is_away_are_reported(url: str) -> None:
    for address, key in ((url, "wrong"), ("http://127.0.0.1:9", "right")):
        client = OpenAIClient(address, key)
        assert not await client.is_ready()
        with pytest.raises(ServerUnavailable):
            await client.model_name()
        await client.close()


async def test_a_refused_request_names_what_is_wrong(client: OpenAIClient) -> None:
    with pytest.raises(HttpError, match=r"^400: (?!Error code).*temperature"):
        async for _ in client.respond(HELLO, PageSettings(temperature=9.0)):
            pass
