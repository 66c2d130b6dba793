import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.waiting import eventually

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_is_cancelled_in_the_engine(
    url: str, triton: FakeTriton, route: str, stream: bool
) -> None:
    triton.script = Script(hold_after=0)
    prompt = {"messages": HELLO} if route.startswith("chat") else {"prompt": "Hello"}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        asking = asyncio.create_task(http.post(f"/v1/{route}", json={"model": MODEL, "stream": stream, **prompt}))
        await eventually(lambda: bool(triton.requests))
        asking.cancel()
    await eventually(lambda: not triton.stops.empty())
    assert triton.stops.get() == triton.requests[0].id
    assert await asyncio.to_thread(triton.requests[0].cancelled.wait, 5)


async def test_a_client_that_leaves_mid_response_is_cancelled_in_the_engine(url: str, triton: FakeTriton) -> None:
    triton.script = Script(hold_after=2)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
    await eventually(lambda: not triton.stops.empty())
    assert triton.stops.get() == triton.requests[0].id


async def test_complete_responses_cancel_nothing(url: str, triton: FakeTriton) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for stream in (False, True):
            await http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "stream": stream})
        await http.get("/health")
    assert triton.stops.empty()
