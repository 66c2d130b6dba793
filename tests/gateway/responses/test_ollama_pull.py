"""``/api/pull`` and ``/api/delete``: Ollama's own client pulls from a hub of ours, if it has an administrator's key."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from lmdeploy.hub.names import HubName
from lmdeploy.hub.pulled import PulledModel, find
from lmdeploy.paths import pulled_records
from openai_gateway.settings import Settings
from tests.support.fake_hub import FakeHub, running_hub
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway

WEIGHTS = bytes(range(256)) * 4000
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}
BOSS = {"Authorization": "Bearer boss"}
BOUND = 2_000_000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub({"owner/name": FILES, "owner/huge": {"model.safetensors": bytes(BOUND + 1)}}) as hub:
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)  # read by the process that downloads
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
        yield hub


@pytest.fixture
def url(triton: FakeTriton, hub: FakeHub, tmp_path: Path) -> Iterator[str]:
    settings = Settings(
        triton_address=triton.address,
        admin_keys=("boss",),
        api_keys=("caller",),
        max_pull_bytes=BOUND,
        engine_dir=tmp_path / "engine",
    )
    (tmp_path / "engine").mkdir()
    with running_gateway(settings) as url:
        yield url


@pytest.fixture
def client(url: str) -> ollama.Client:
    return ollama.Client(url, trust_env=False, headers=BOSS)


def pulled() -> PulledModel | None:
    return find(pulled_records(), HubName("owner/name"))


def test_a_model_is_pulled_line_by_line_and_deleted(client: ollama.Client) -> None:
    lines = list(client.pull("owner/name", stream=True))
    assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
    of_weights = [line for line in lines if line.total == len(WEIGHTS)]
    assert of_weights[-1].completed == len(WEIGHTS)
    assert str(of_weights[-1].digest).startswith("sha256:")
    assert {line.status for line in lines} >= {"verifying sha256 digest", "writing manifest"}
    model = pulled()
    assert (model.path / "model.safetensors").read_bytes() == WEIGHTS
    assert client.pull("hf.co/owner/name:latest").status == "success"
    client.delete("owner/name")
    assert pulled() is None
    assert not model.folder.exists()
    with pytest.raises(ollama.ResponseError, match="was not pulled"):
        client.delete("owner/name")


def test_what_cannot_be_pulled_is_the_last_line_or_an_error(client: ollama.Client, hub: FakeHub) -> None:
    hub.wrong["model.safetensors"] = b"?" * len(WEIGHTS)
    for name, message in (
        ("owner/missing", "the hub has no such model"),
        ("owner/name", "has not the checksum"),
        ("owner/huge", "remove one first"),
    ):
        for stream in (True, False):
            with pytest.raises(ollama.ResponseError, match=message):
                list(client.pull(name, stream=True)) if stream else client.pull(name)
    assert pulled() is None


@pytest.mark.parametrize("name", ["../../etc", "name", "http://elsewhere/a", "owner/name:../../x", "a/b\nc"])
def test_no_name_becomes_a_path_or_an_address(url: str, hub: FakeHub, name: str) -> None:
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
        answer = httpx.request(method, url + path, json={"model": name}, headers=BOSS, trust_env=False)
        assert answer.status_code == 400
        assert "must be the name of a hub's repository" in answer.json()["error"]
    assert hub.requests == []


def test_only_administrators_pull_and_delete(url: str, triton: FakeTriton, hub: FakeHub) -> None:
    body: Any = {"model": "owner/name"}
    for headers in ({}, {"Authorization": "Bearer caller"}):
        for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
            assert httpx.request(method, url + path, json=body, headers=headers, trust_env=False).status_code == 401
    with running_gateway(Settings(triton_address=triton.address)) as open_url:
        rejected = httpx.post(f"{open_url}/api/pull", json=body, trust_env=False)
        assert rejected.status_code == 403
        assert "--admin-keys" in rejected.json()["error"]
    assert hub.requests == []


def test_a_model_that_is_served_is_not_deleted(client: ollama.Client, tmp_path: Path) -> None:
    client.pull("owner/name")
    model = pulled()
    manifest = tmp_path / "engine" / "manifest.json"
    manifest.write_text(json.dumps({"files": [str(model.path / "model.safetensors")]}))
    with pytest.raises(ollama.ResponseError, match="is being served"):
        client.delete("owner/name")
    assert pulled() == model
    shutil.rmtree(manifest.parent)
    client.delete("owner/name")
    assert pulled() is None
