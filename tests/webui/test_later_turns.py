"""A later turn of a chat costs what is new in it, in whatever tokens the model wrote its responses."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from lmdeploy.paths import DEFAULT_MODEL_NAME as MODEL
from lmdeploy.paths import default_model_dir
from lmdeploy.tokenizer import Tokenizer
from openai_gateway.settings import Settings
from tests.support.gateways import running_gateway
from tests.support.prefix_hits import found
from tests.support.servers import running_triton
from webui.conversation import Outcome, Turn
from webui.generating import generate_last
from webui.openai_client import OpenAIClient
from webui.settings import Settings as PageSettings

pytestmark = pytest.mark.e2e

BLOCK = 16


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with (
        running_triton(enable_prefix_caching=True, cache_max_entry_count=64, cache_block_seq_len=BLOCK) as triton,
        running_gateway(Settings(triton_address=triton.grpc_address)) as address,
    ):
        yield f"{address}/v1"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_found_in_the_cache_in_the_tokens_it_was_written_in(url: str, stream: bool) -> None:
    letter = Tokenizer(str(default_model_dir())).encode("k", add_bos=False)
    messages: Any = [{"role": "user", "content": f"Write a letter. {stream}"}]
    # One token again and again, of which the tokenizer would put several together.
    options: Any = {"logit_bias": {letter[0]: 100}, "max_tokens": 70, "extra_body": {"return_token_ids": True}}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        responses = client.chat.completions.create(model=MODEL, messages=messages, **options, stream=stream)
        *_, response = responses if stream else [responses]
        ids = response.choices[0].token_ids
        assert ids == letter * 70
        messages += [{"role": "assistant", "content": "k" * 70}, {"role": "user", "content": "Another one."}]

        def cached() -> int:
            usage = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1).usage
            return usage.prompt_tokens_details.cached_tokens or 0

        usage = client.chat.completions.create(model=MODEL, messages=messages[:1], max_tokens=1).usage
        assert cached() <= usage.prompt_tokens
        messages[1]["token_ids"] = ids
        assert cached() == found(usage.prompt_tokens + 69, BLOCK)  # the last token was not computed


async def test_the_page_s_later_turns_find_all_that_was_said(url: str) -> None:
    client = OpenAIClient(url)
    turns: list[Turn] = []
    cached = 0
    for question in ("Write a table of planets.", "Now of animals.", "And 12 numbers, please."):
        turns.append(Turn(question))
        await generate_last(client, turns, PageSettings(temperature=1.5, max_new_tokens=48))
        response = turns[-1].response
        assert not cached or response.cached_count == found(cached, BLOCK)
        assert response.prompt_count is not None
        # Of a response that ended by itself the last token was computed, for the mark of its end.
        cached = response.prompt_count + response.token_count - (response.outcome == Outcome.LENGTH)
    await client.close()
