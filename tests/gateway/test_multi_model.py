"""Several models behind one gateway: requests find theirs, and administrators load and unload."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lmdeploy.serve.multi_model import administration
from lmdeploy.serve.multi_model.prepared import PreparedModel
from lmdeploy.serve.multi_model.registry import Registry, ServedEntry
from lmdeploy.serve.multi_model.requested import RequestedModel
from lmdeploy.turbomind.repository import get_parameter
from openai_gateway.app import create_app
from openai_gateway.settings import Settings
from tests.support.fake_triton import TOKEN_BYTES, FakeTriton, Received, Script

ADMIN = {"Authorization": "Bearer boss"}
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def triton(triton: FakeTriton) -> FakeTriton:
    triton.script = lambda received: Script(texts=(received.model,))
    return triton


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = Registry(tmp_path)
    serve(made, "small", "big@1", "big@2")
    return made


def serve(registry: Registry, *names: str) -> None:
    engine_dir = registry.folder / "engine"
    engine_dir.mkdir(exist_ok=True)
    TOKEN_BYTES.write(engine_dir / "token_bytes.bin")
    registry.write(
        [ServedEntry(name, f".{name.replace('@', '_')}", str(engine_dir), "vicuna", "cpu", 1) for name in names], {}
    )


@pytest.fixture
def gateway(triton: FakeTriton, registry: Registry) -> Iterator[TestClient]:
    settings = Settings(
        triton_address=triton.address,
        models_dir=registry.folder,
        repository_key=triton.repository_key,
        admin_keys=("boss",),
    )
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    async def prepared(requested: RequestedModel) -> PreparedModel:
        if "nowhere" in requested.path:
            raise ValueError(f"{requested.path}: no such directory")
        return PreparedModel(
            requested.name,
            requested.path,
            "llama2",
            requested.chat_template,
            requested.engine,
            "cpu",
            1,
            1,
            8,
            requested.idle_timeout,
        )

    monkeypatch.setattr(administration, "_prepared", prepared)


def chat(gateway: TestClient, model: str, **more: Any) -> Any:
    return gateway.post("/v1/chat/completions", json={"model": model, "messages": MESSAGES} | more)


def cards(gateway: TestClient) -> dict[str, Any]:
    return {card["id"]: card for card in gateway.get("/v1/models").json()["data"]}


def load(gateway: TestClient, name: str, headers: dict[str, str] = ADMIN, **more: Any) -> Any:
    body = {"model_name": name, "model_path": f"/models/{name}"} | more
    return gateway.post("/v1/load_model", json=body, headers=headers)


def unload(gateway: TestClient, name: str, headers: dict[str, str] = ADMIN) -> Any:
    return gateway.post("/v1/unload_model", json={"model_name": name}, headers=headers)


REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_request_goes_to_the_model_it_names(triton: FakeTriton, gateway: TestClient, path: str) -> None:
    for name, request in (("small", "small"), ("big@1", "big_1"), ("big@2", "big_2"), ("big", "big_2")):
        response = gateway.post(path, json=REQUESTS[path] | {"model": name})
        assert response.json()["model"] == name
        assert triton.requests[-1].model == f"ensemble.{request}"
    unknown = gateway.post(path, json=REQUESTS[path] | {"model": "bigger"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_tokens_and_interactive_turns_are_of_the_first_model_where_none_is_named(
    triton: FakeTriton, gateway: TestClient
) -> None:
    assert gateway.post("/v1/encode", json={"input": "Hi"}).status_code == 200
    assert gateway.post("/tokenize", json={"model": "big", "prompt": "Hi"}).json()["count"] == 3
    assert gateway.post("/tokenize", json={"model": "bigger", "prompt": "Hi"}).status_code == 404
    assert gateway.post("/v1/chat/interactive", json={"prompt": "Hi"}).status_code == 200
    assert triton.requests[-1].model == "ensemble.small"


def test_all_models_are_listed_and_a_bare_name_says_which_version_it_is(gateway: TestClient) -> None:
    assert {name: card["root"] for name, card in cards(gateway).items()} == {
        "small": "small", "big@1": "big@1", "big@2": "big@2", "big": "big@2",
    }  # fmt: skip
    assert gateway.get("/v1/models/big").json()["root"] == "big@2"
    assert gateway.get("/health").status_code == 200


def test_requests_for_a_model_that_could_not_be_loaded_name_no_files(gateway: TestClient, registry: Registry) -> None:
    first, *others = registry.models()
    registry.write([replace(first, error="/models/small/model.safetensors is cut short"), *others])
    rejected = chat(gateway, "small")
    assert rejected.status_code == 503
    assert rejected.json()["error"]["message"] == "The model `small` could not be loaded; the server's log says why."
    assert chat(gateway, "big").status_code == 200


def test_what_another_process_loads_and_unloads_is_seen_at_once(gateway: TestClient, registry: Registry) -> None:
    assert chat(gateway, "other").status_code == 404
    serve(registry, "other", "big@1")
    assert chat(gateway, "other").status_code == 200
    assert chat(gateway, "small").status_code == 404
    assert cards(gateway)["big"]["root"] == "big@1"
    serve(registry)
    assert cards(gateway) == {}
    assert gateway.get("/health").status_code == 503
    assert gateway.post("/v1/encode", json={"input": "Hi"}).status_code == 404


def test_adapters_belong_to_their_models(triton: FakeTriton, gateway: TestClient) -> None:
    triton.adapters_of = {"turbomind.big_2": {"sql": ""}}
    assert cards(gateway)["sql"]["parent"] == "big@2"
    assert chat(gateway, "sql").json()["model"] == "sql"
    received = triton.requests[-1]
    assert (received.model, received.inputs["lora_name"]) == ("ensemble.big_2", "sql")
    body = {"lora_name": "law", "lora_path": "/law"}
    unnamed = gateway.post("/v1/load_lora_adapter", json=body, headers=ADMIN)
    assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "base_model_name")
    taken = gateway.post(
        "/v1/load_lora_adapter", json=body | {"lora_name": "big", "base_model_name": "small"}, headers=ADMIN
    )
    assert (taken.status_code, taken.json()["error"]["param"]) == (400, "lora_name")
    added = gateway.post("/v1/load_lora_adapter", json=body | {"base_model_name": "small"}, headers=ADMIN)
    assert added.status_code == 200
    assert triton.adapters_of["turbomind.small"] == {"law": ""}
    removed = gateway.post(
        "/v1/unload_lora_adapter", json={"lora_name": "sql", "base_model_name": "big"}, headers=ADMIN
    )
    assert removed.status_code == 200
    assert triton.adapters_of["turbomind.big_2"] == {}


def test_a_model_comes_and_goes(triton: FakeTriton, gateway: TestClient, registry: Registry) -> None:
    loaded = load(gateway, "big@3", engine={"session_len": 64}, chat_template="vicuna", idle_timeout="1h")
    assert (loaded.status_code, loaded.json()) == (200, "Success: model 'big@3' added successfully.")
    assert len(triton.loaded) == 6
    config = (registry.repository / "turbomind.big_3" / "config.pbtxt").read_text()
    assert get_parameter(config, "idle_timeout") == "3600"
    assert chat(gateway, "big").json()["model"] == "big"
    assert triton.requests[-1].model == "ensemble.big_3"
    gone = unload(gateway, "big@3")
    assert (gone.status_code, gone.json()) == (200, "Success: model 'big@3' removed successfully.")
    assert triton.loaded == []
    assert not (registry.repository / "turbomind.big_3").exists()
    assert chat(gateway, "big@3").status_code == 404
    assert chat(gateway, "big").status_code == 200
    assert unload(gateway, "big@3").status_code == 404
    assert load(gateway, "big@3").status_code == 200  # again


def test_a_model_that_cannot_be_loaded_leaves_everything_as_it_was(
    triton: FakeTriton, gateway: TestClient, registry: Registry
) -> None:
    before = registry.models()
    triton.broken = {"ensemble.broken": "no tokenizer in it"}  # all but it and one more are there by then
    rejected = load(gateway, "broken")
    assert rejected.status_code == 400
    assert (
        rejected.json()["error"]["message"] == "model broken could not be loaded: Invalid argument: no tokenizer in it"
    )
    absent = load(gateway, "absent", model_path="/nowhere")
    assert (absent.status_code, absent.json()["error"]["message"]) == (400, "/nowhere: no such directory")
    assert (registry.models(), triton.loaded) == (before, [])
    assert list(registry.repository.iterdir()) == []
    assert chat(gateway, "small").status_code == 200


REJECTED: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is taken": ({"model_name": "small"}, "two models are called small"),
    "a name that has versions": ({"model_name": "big"}, "big is served with versions and without"),
    "no version": ({"model_name": "small@x"}, "NAME@VERSION"),
    "a relative path": ({"model_path": "models/x"}, "model_path must be the absolute path"),
    "an odd time": ({"idle_timeout": "soon"}, "idle_timeout must be seconds or a duration such as 5m"),
    "a setting that is none": ({"engine": {"sesion_len": 3}}, "did you mean session_len?"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_bad_wish_is_refused_in_a_sentence(triton: FakeTriton, gateway: TestClient, case: str) -> None:
    body, sentence = REJECTED[case]
    rejected = load(gateway, "new", **body)
    assert rejected.status_code == 400
    assert sentence in rejected.json()["error"]["message"]
    assert triton.loaded == []


def test_while_somebody_loads_nobody_else_does(gateway: TestClient, registry: Registry) -> None:
    with registry.changing():
        for response in (load(gateway, "new"), unload(gateway, "small")):
            assert response.status_code == 409
            assert "try again" in response.json()["error"]["message"]
    assert "small" in cards(gateway)


def test_only_administrators_load_and_unload(triton: FakeTriton, gateway: TestClient, registry: Registry) -> None:
    for headers in ({}, {"Authorization": "Bearer mallory"}):
        assert load(gateway, "new", headers).status_code == 401
        assert unload(gateway, "small", headers).status_code == 401
    keyless = Settings(triton_address=triton.address, models_dir=registry.folder)
    with TestClient(create_app(keyless)) as client:
        rejected = load(client, "new")
        assert rejected.status_code == 403
        assert "--admin-keys" in rejected.json()["error"]["message"]
    assert "small" in cards(gateway)


def test_a_server_of_one_model_keeps_it(triton: FakeTriton) -> None:
    with TestClient(create_app(Settings(triton_address=triton.address, admin_keys=("boss",)))) as client:
        for response in (load(client, "new"), unload(client, "fake-model")):
            assert response.status_code == 400
            assert "--models-file" in response.json()["error"]["message"]
        assert chat(client, "fake-model").status_code == 200
        assert triton.requests[-1].model == "ensemble"


def test_metrics_are_of_each_model(gateway: TestClient) -> None:
    chat(gateway, "small")
    page = gateway.get("/metrics").text
    ends = 'lmdeploy_gateway_responses_total{finished_reason="stop",model_name='
    assert f'{ends}"small"}} 1.0' in page
    assert f'{ends}"big@1"}} 0.0' in page


def test_a_response_that_is_cut_off_by_unloading_says_so(triton: FakeTriton, gateway: TestClient) -> None:
    import grpc

    def script(received: Received) -> Script:
        reason = "the model was unloaded before the response had ended"
        return Script(texts=("a", "b"), fail_after=1, error=(grpc.StatusCode.NOT_FOUND, reason))

    triton.script = script
    streamed = chat(gateway, "small", stream=True).text
    assert "the model was unloaded before the response had ended" in streamed
    assert chat(gateway, "small").status_code == 404
