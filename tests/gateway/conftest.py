from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from lmdeploy.vl.constants import VISION_FILE
from openai_gateway.settings import Settings
from tests.support.fake_triton import TOKEN_BYTES, FakeTriton
from tests.support.gateways import openai_client, running_gateway

MODEL = "fake-model"
MAX_BODY = 100_000


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the model of the module's gateway, which sees."""
    made = tmp_path_factory.mktemp("engine")
    TOKEN_BYTES.write(made / "token_bytes.bin")
    (made / VISION_FILE).touch()
    return made


@pytest.fixture(scope="module")
def served(engine_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeTriton, str]]:
    with FakeTriton(MODEL) as fake:
        settings = Settings(
            triton_address=fake.address,
            max_body_bytes=MAX_BODY,
            engine_dir=engine_dir,
            files_dir=tmp_path_factory.mktemp("files"),
        )
        with running_gateway(settings) as url:
            yield fake, url


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with FakeTriton(MODEL) as made:
        yield made


@pytest.fixture
def triton(served: tuple[FakeTriton, str]) -> FakeTriton:
    fake, _ = served
    fake.reset()
    return fake


@pytest.fixture
def url(served: tuple[FakeTriton, str]) -> str:
    return served[1]


@pytest.fixture
def http(triton: FakeTriton, url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False) as client:
        yield client


@pytest.fixture
def client(triton: FakeTriton, url: str) -> Iterator[openai.OpenAI]:
    with openai_client(url) as client:
        yield client


@pytest.fixture
def asking_client(triton: FakeTriton) -> Iterator[openai.OpenAI]:
    """A client of a gateway that has no table of token texts."""
    with running_gateway(Settings(triton_address=triton.address)) as url, openai_client(url) as client:
        yield client
