"""A gateway that keeps files, two keys, and a client for each."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway
from tests.support.waiting import eventually_sync

KEYS = ("ann", "bob")
LIMITS = {"max_file_bytes": 300_000, "max_key_bytes": 400_000, "max_key_files": 12, "max_body_bytes": 20_000}
ENDED = ("completed", "failed", "expired", "cancelled")


def request(custom_id: str, text: str = "Say it", **more: Any) -> dict[str, Any]:
    """Return a request of a batch, as a user writes it."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **more.pop("body", {})}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}


def jsonl(*requests: dict[str, Any] | str) -> bytes:
    """Return lines, of texts as they are."""
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in requests).encode()


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """Return the lines of a result file by ``custom_id``, which each must have for itself."""
    assert file_id is not None
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def wait_for(client: openai.OpenAI, batch_id: str, timeout: float = 180) -> openai.types.Batch:
    """Return a batch that has ended."""
    eventually_sync(lambda: client.batches.retrieve(batch_id).status in ENDED, timeout)
    return client.batches.retrieve(batch_id)


def contents(folder: Path) -> set[str]:
    """Return the names of what lies in a folder of files alongside the records."""
    return {path.name for path in folder.glob("*/*")}


@pytest.fixture
def settings(triton: FakeTriton, tmp_path: Path) -> Settings:
    return Settings(triton_address=triton.address, api_keys=KEYS, files_dir=tmp_path / "kept", **LIMITS)  # type: ignore[arg-type]


@pytest.fixture
def base_url(settings: Settings) -> Iterator[str]:
    with running_gateway(settings) as url:
        yield f"{url}/v1"


@pytest.fixture
def client_of(base_url: str) -> Iterator[Callable[[str], openai.OpenAI]]:
    made: dict[str, openai.OpenAI] = {}

    def of(key: str) -> openai.OpenAI:
        return made.setdefault(key, openai.OpenAI(base_url=base_url, api_key=key, max_retries=0))

    yield of
    for client in made.values():
        client.close()


@pytest.fixture
def ann(client_of: Callable[[str], openai.OpenAI]) -> openai.OpenAI:
    return client_of("ann")


@pytest.fixture
def bob(client_of: Callable[[str], openai.OpenAI]) -> openai.OpenAI:
    return client_of("bob")
