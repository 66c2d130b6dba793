from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from lmdeploy.serve.client import TritonClient
from tests.support.fake_triton import FakeTriton


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake


@pytest_asyncio.fixture
async def client(triton: FakeTriton) -> AsyncIterator[TritonClient]:
    async with TritonClient(triton.address) as client:
        yield client
