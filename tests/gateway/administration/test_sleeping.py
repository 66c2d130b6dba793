"""`/sleep`, `/wake_up` and `/is_sleeping`, and what the list of models says of them."""

import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lmdeploy.cli.main import main
from lmdeploy.serve.multi_model.registry import Registry, ServedEntry
from openai_gateway.app import create_app
from openai_gateway.registry import IS_SLEEPING, SLEEP, WAKE_UP
from openai_gateway.settings import Settings
from tests.support.fake_triton import AWAKE, FakeTriton
from tests.support.gateways import running_gateway

ADMIN = {"Authorization": "Bearer boss"}


@pytest.fixture
def triton(triton: FakeTriton) -> FakeTriton:
    triton.memory = {"turbomind.small": dict(AWAKE), "turbomind.big": dict(AWAKE)}
    return triton


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = Registry(tmp_path)
    made.write(
        [ServedEntry(name, f".{name}", str(tmp_path), "vicuna", "cpu", 1) for name in ("small", "big")],
        {},
        budget=8 * 10**9,
    )
    return made


def client(triton: FakeTriton, registry: Registry, **settings: Any) -> TestClient:
    return TestClient(create_app(Settings(triton_address=triton.address, models_dir=registry.folder, **settings)))


def is_sleeping(gateway: TestClient, **params: Any) -> bool:
    return bool(gateway.get(IS_SLEEPING, params=params).json()["is_sleeping"])


def test_one_model_sleeps_and_wakes_or_all_do(triton: FakeTriton, registry: Registry) -> None:
    with client(triton, registry) as gateway:
        slept = gateway.post(SLEEP, params={"model": "small", "level": 2})
        assert (slept.status_code, slept.content) == (200, b"")
        assert (is_sleeping(gateway, model="small"), is_sleeping(gateway, model="big")) == (True, False)
        assert not is_sleeping(gateway)
        assert gateway.post(SLEEP).status_code == 200
        assert is_sleeping(gateway)
        assert gateway.post(WAKE_UP, params={"model": "big"}).status_code == 200
        assert (is_sleeping(gateway, model="small"), is_sleeping(gateway, model="big")) == (True, False)
    done = [(one["model"], one["sleep_control"], one.get("sleep_level")) for one in triton.sleep_controls]
    assert done[0] == ("turbomind.small", "sleep", 2)
    assert sorted(done[1:3]) == [("turbomind.big", "sleep", 1), ("turbomind.small", "sleep", 1)]
    assert done[3] == ("turbomind.big", "wake", None)


@pytest.mark.parametrize(
    ("params", "status"), [({"level": 3}, 400), ({"level": 0}, 400), ({"level": "x"}, 400), ({"model": "a"}, 404)]
)
def test_a_bad_wish_is_refused_by_name(
    triton: FakeTriton, registry: Registry, params: dict[str, Any], status: int
) -> None:
    with client(triton, registry) as gateway:
        rejected = gateway.post(SLEEP, params=params)
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (status, next(iter(params)))
    assert triton.sleep_controls == []


def test_an_engine_that_does_not_sleep_says_so(triton: FakeTriton, registry: Registry) -> None:
    del triton.memory["turbomind.big"]
    with client(triton, registry) as gateway:
        rejected = gateway.post(SLEEP, params={"model": "big"})
        assert (rejected.status_code, "sleep_control" in rejected.json()["error"]["message"]) == (400, True)
        assert not is_sleeping(gateway, model="big")
        cards = {card["id"]: card for card in gateway.get("/v1/models").json()["data"]}
    assert (cards["big"]["state"], cards["big"]["memory_bytes"]) == (None, None)


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        ({}, {}, 200),  # nobody has a key
        ({"api_keys": ("ann",)}, {"Authorization": "Bearer ann"}, 403),
        ({"api_keys": ("ann",), "admin_keys": ("boss",)}, {"Authorization": "Bearer ann"}, 401),
        ({"admin_keys": ("boss",)}, {}, 401),
        ({"api_keys": ("ann",), "admin_keys": ("boss",)}, ADMIN, 200),
    ],
)
@pytest.mark.parametrize("path", [SLEEP, WAKE_UP])
def test_where_there_are_keys_administrators_put_models_to_sleep(
    triton: FakeTriton, registry: Registry, path: str, settings: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    with client(triton, registry, **settings) as gateway:
        assert gateway.post(path, headers=headers).status_code == status
    assert bool(triton.sleep_controls) == (status == 200)


def test_the_list_of_models_has_their_memory(triton: FakeTriton, registry: Registry) -> None:
    asleep = {"state": "asleep", "bytes": 0, "sleeps_in": None, "waiting": 2, "error": "no file"}
    triton.memory["turbomind.big"] |= asleep
    with client(triton, registry) as gateway:
        listed = gateway.get("/v1/models").json()
        small, big = listed["data"]
        assert (listed["memory_bytes"], listed["memory_budget"]) == (5 * 10**9, 8 * 10**9)
        assert gateway.get("/v1/models/big").json()["state"] == "asleep"
    kept = ("state", "memory_bytes", "sleeps_in", "waiting_requests", "load_error")
    assert [small[name] for name in kept] == ["awake", 3_000_000_000, 260.0, 0, None]
    assert [big[name] for name in kept] == ["asleep", 0, None, 2, "no file"]
    assert 40 <= time.time() - small["last_used"] < 100


def test_the_command_line_lists_models_and_stops_one(
    triton: FakeTriton, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    triton.memory["turbomind.small"] |= {"idle_seconds": 7200.0, "waiting": 3}
    triton.memory["turbomind.big"]["error"] = "no such file"
    settings = Settings(triton_address=triton.address, models_dir=registry.folder, api_keys=("ann",))
    with running_gateway(settings) as url:
        assert main(["stop", "big", url, "--api-key", "ann"]) == 0
        assert main(["ps", url.removeprefix("http://"), "--api-key", "ann"]) == 0
        table = capsys.readouterr().out
        for arguments, sentence in ((["stop", "bg", url, "--api-key", "ann"], "`bg`"), (["ps", url], "api key")):
            assert main(arguments) == 1
            assert sentence in capsys.readouterr().err
    assert table.splitlines() == [
        "NAME   STATE   MEMORY   LAST USED       SLEEPS IN  WAITING",
        "small  awake   3.00 GB  2 hours ago     4 minutes  3",
        "big    asleep  -        40 seconds ago  -          0",
        "all models: 5.00 GB of 8.00 GB",
        "big could not be loaded: no such file",
    ]
    assert [(one["model"], one["sleep_level"]) for one in triton.sleep_controls] == [("turbomind.big", 2)]
