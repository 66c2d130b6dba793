"""Callers that leave in the middle of their responses, many of them, do not bring Triton down."""

import asyncio
import random
from contextlib import aclosing, suppress
from pathlib import Path

from lmdeploy.serve.client import TritonClient
from lmdeploy.serve.request import GenerateRequest
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.servers import running_triton
from tests.support.tiny_models import make_tiny_llama

CALLERS, TIMES = 4, 60


async def test_triton_survives_callers_that_leave(tmp_path: Path) -> None:
    with running_triton(make_tiny_llama(tmp_path / "tiny")) as server:
        first = server.pid
        await _leave(server)
        assert server.is_ready()
        assert server.pid == first
        assert await _read_to_the_end(server) == 20


async def _leave(server: TritonServer) -> None:
    """Leave many requests, some between two chunks, most while waiting for one."""

    async def leave(client: TritonClient, generator: random.Random) -> None:
        for _ in range(TIMES):
            reading = asyncio.create_task(_read(client, generator.randint(1, 9)))
            await asyncio.sleep(generator.uniform(0, 0.02))
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async with TritonClient(server.grpc_address) as client:
        await asyncio.gather(*(leave(client, random.Random(seed)) for seed in range(CALLERS)))


async def _read(client: TritonClient, chunks: int) -> None:
    request = GenerateRequest(text_input="a b c", max_new_tokens=100, ignore_eos=True, stream=True)
    async with aclosing(client.generate(request)) as responses:
        async for _ in responses:
            chunks -= 1
            if chunks == 0:
                return


async def _read_to_the_end(server: TritonServer) -> int:
    request = GenerateRequest(text_input="a b c", max_new_tokens=20, ignore_eos=True)
    async with TritonClient(server.grpc_address) as client:
        return [chunk async for chunk in client.generate(request)][-1].generate_token_len
