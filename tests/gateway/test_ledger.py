"""A worker's open requests are on disk, so that they can be cancelled when it is killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lmdeploy.serve.client import GenerateRequest, TritonClient
from lmdeploy.serve.errors import TritonRequestError
from openai_gateway.process import ledger as module
from openai_gateway.process.ledger import Ledger, cancel_requests, open_requests
from tests.support.fake_triton import FakeTriton, Script
from tests.support.waiting import eventually


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    made = FakeTriton()
    yield made
    made.stop()


async def test_a_request_is_listed_for_as_long_as_the_engine_may_be_at_work_on_it(
    fake: FakeTriton, tmp_path: Path
) -> None:
    path = tmp_path / "ledger"
    async with TritonClient(fake.address, Ledger(path)) as client:
        whole, left, rejected = (GenerateRequest(text_input="hello", stream=True) for _ in range(3))
        async for _ in client.generate(whole):
            assert open_requests(path) == {whole.request_id}
        assert open_requests(path) == set()
        fake.script = Script(fail_after=0)
        with pytest.raises(TritonRequestError):
            await anext(client.generate(rejected))
        fake.script = Script(hold_after=1)
        response = client.generate(left)
        await anext(response)
        assert left.request_id in open_requests(path)
        await response.aclose()
        await eventually(lambda: open_requests(path) == set())
    assert left.request_id in {fake.stops.get(timeout=180), fake.stops.get(timeout=180)}


def test_requests_of_a_worker_that_is_gone_are_cancelled(fake: FakeTriton, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    for name in ("one", "two", "three"):
        ledger.begin(name)
    ledger.end("two")
    cancel_requests(fake.address, open_requests(path))
    assert {fake.stops.get(timeout=180), fake.stops.get(timeout=180)} == {"one", "three"}
    fake.stop()
    cancel_requests(fake.address, {"one"})  # Triton is gone too


def test_the_file_does_not_grow_with_what_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LEN", 1000)
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.begin("long")
    for number in range(1000):
        ledger.begin(f"{number}")
        ledger.end(f"{number}")
        assert path.stat().st_size < 1100
    assert open_requests(path) == {"long"}
    assert open_requests(tmp_path / "nowhere") == set()
