from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from lmdeploy.serve.client import TritonClient
from tests.support.fake_triton import FakeTriton


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    fake = FakeTriton()
    yield fake
    fake.stop()


@pytest_asyncio.fixture
async def client(triton: FakeTriton) -> AsyncIterator[TritonClient]:
    async with TritonClient(triton.address) as client:
        yield client
