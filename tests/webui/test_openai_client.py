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


async def test_a_response_is_streamed_to_its_end(client: OpenAIClient) -> None:
    pieces = [piece async for piece in client.respond(HELLO, PageSettings())]
    assert "".join(piece.text for piece in pieces) == REPLY
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert pieces[-1].prompt_count == 7


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


async def test_the_server_says_its_model_and_that_it_is_there(client: OpenAIClient) -> None:
    assert await client.is_ready()
    assert await client.model_name() == "fake-model"


@pytest.mark.parametrize(("reported", "takes"), [({"vision": True}, True), ({"vision": False}, False), (None, True)])
async def test_questions_have_images_unless_the_server_says_no(reported: object, takes: bool) -> None:
    with running_host(lambda _: Reply(json.dumps({"modalities": reported}).encode())) as host:
        client = OpenAIClient(host.url, None)
        assert await client.takes_images() is takes
        await client.close()
    assert host.visits == ["GET /props"]


async def test_an_adapter_answers_who_asks_for_it(client: OpenAIClient, fake_triton: FakeTriton) -> None:
    fake_triton.adapters["pirate"] = ""
    assert await client.models() == ["fake-model", "pirate"]
    await generate_last(client, [Turn("Hello")], PageSettings(model="pirate"))
    assert fake_triton.requests[-1].inputs["lora_name"] == "pirate"


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


async def test_every_setting_is_understood(client: OpenAIClient, fake_triton: FakeTriton) -> None:
    settings = PageSettings("", "", 0.5, 0.9, 3, 0.1, 9, 1.5, 0.5, 0.25, 7, ("END",), '{"type": "object"}', "off")
    async for _ in client.respond(HELLO, settings):
        pass
    inputs = fake_triton.requests[-1].inputs
    reported = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "repetition_penalty", "presence_penalty")
    assert [inputs[name] for name in reported] == pytest.approx([0.5, 0.9, 3, 0.1, 9, 1.5, 0.5])
    assert (inputs["frequency_penalty"], inputs["random_seed"], inputs["stop_words"]) == (0.25, 7, ["END"])
    assert json.loads(inputs["response_format"])["json_schema"]["schema"] == {"type": "object"}
    assert json.loads(inputs["messages"])["chat_template_kwargs"]["enable_thinking"] is False
