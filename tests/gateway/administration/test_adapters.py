"""LoRA adapters are models of their own names, which administrators load, and which may belong to API keys."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from openai_gateway.app import create_app
from openai_gateway.registry import ADMINISTERED, LOAD_ADAPTER, UNLOAD_ADAPTER
from openai_gateway.settings import Settings
from tests.abuse.attacks import LONG, Attack, responses
from tests.support.fake_triton import FakeTriton, token_ids
from tests.support.gateways import running_gateway

MESSAGES = [{"role": "user", "content": "Hi"}]
ADMIN = {"Authorization": "Bearer boss"}


def client(triton: FakeTriton, **settings: Any) -> TestClient:
    return TestClient(create_app(Settings(triton_address=triton.address, **settings)))


def models(gateway: TestClient, key: str = "") -> list[str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return [card["id"] for card in gateway.get("/v1/models", headers=headers).json()["data"]]


def load(gateway: TestClient, name: str, **body: Any) -> Any:
    body = {"lora_name": name, "lora_path": f"/adapters/{name}"} | body
    return gateway.post("/v1/load_lora_adapter", json=body, headers=ADMIN)


REQUESTS = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_request_names_an_adapter_as_its_model(triton: FakeTriton, path: str) -> None:
    triton.adapters = {"sql": ""}
    with client(triton) as gateway:
        response = gateway.post(path, json=REQUESTS[path] | {"model": "sql"})
        assert response.json()["model"] == "sql"
        assert triton.requests[-1].inputs["lora_name"] == "sql"
        gateway.post(path, json=REQUESTS[path] | {"model": "fake-model"})
        assert "lora_name" not in triton.requests[-1].inputs
        rejected = gateway.post(path, json=REQUESTS[path] | {"model": "poetry"})
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (404, "model_not_found")


def test_adapters_are_listed_after_the_model_they_belong_to(triton: FakeTriton) -> None:
    triton.adapters = {"sql": "", "poetry": ""}
    with client(triton) as gateway:
        assert models(gateway) == ["fake-model", "sql", "poetry"]
        card = gateway.get("/v1/models/sql").json()
        assert (card["id"], card["parent"]) == ("sql", "fake-model")
        assert gateway.get("/v1/models/fake-model").json()["parent"] is None


def test_an_interactive_turn_names_its_adapter(triton: FakeTriton) -> None:
    triton.adapters = {"sql": ""}
    with client(triton) as gateway:
        for adapter, sent in (("sql", "sql"), ("", None), (None, None)):
            body = {"prompt": "Hi", "adapter_name": adapter, "session_id": 3, "interactive_mode": True}
            assert gateway.post("/v1/chat/interactive", json=body).status_code == 200
            assert triton.requests[-1].inputs.get("lora_name") == sent


def test_administrators_load_and_unload_adapters(triton: FakeTriton) -> None:
    with client(triton, admin_keys=("boss",), api_keys=("k",)) as gateway:
        assert load(gateway, "sql").json() == "Success: LoRA adapter 'sql' added successfully."
        assert models(gateway, "k") == ["fake-model", "sql"]
        assert load(gateway, "sql").status_code == 400
        gone = gateway.post("/v1/unload_lora_adapter", json={"lora_name": "sql"}, headers=ADMIN)
        assert gone.json() == "Success: LoRA adapter 'sql' removed successfully."
        assert models(gateway, "k") == ["fake-model"]
        assert gateway.post("/v1/unload_lora_adapter", json={"lora_name": "sql"}, headers=ADMIN).status_code == 404


@pytest.mark.parametrize("path", [LOAD_ADAPTER, UNLOAD_ADAPTER])
def test_nobody_else_does(triton: FakeTriton, path: str) -> None:
    body = {"lora_name": "sql"} | ({"lora_path": "/adapters/sql"} if "unload" not in path else {})
    with client(triton, admin_keys=("boss",), api_keys=("k",)) as gateway:
        for headers in ({}, {"Authorization": "Bearer k"}):
            assert gateway.post(path, json=body, headers=headers).status_code == 401
    with client(triton) as gateway:
        rejected = gateway.post(path, json=body, headers=ADMIN)
        assert rejected.status_code == 403
        assert "--admin-keys" in rejected.json()["error"]["message"]
    assert triton.adapters == {}


@pytest.mark.parametrize("path", ADMINISTERED)
@pytest.mark.parametrize(("admin_keys", "status"), [(("boss",), 401), ((), 403)])
def test_without_an_administrator_s_key_no_body_is_read(
    triton: FakeTriton, path: str, admin_keys: tuple[str, ...], status: int
) -> None:
    first = f"{ADMINISTERED[path].method} {path} HTTP/1.1"
    head = f"{first}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {LONG}\r\n\r\n"
    settings = Settings(triton_address=triton.address, admin_keys=admin_keys, api_keys=("k",))
    with running_gateway(settings) as url:
        attack = Attack("a body that never comes", head.encode(), is_unfinished=True)
        assert responses(int(url.rpartition(":")[2]), attack, timeout=60) == [status]


def test_an_adapter_that_belongs_to_keys_is_neither_seen_nor_used_by_others(triton: FakeTriton) -> None:
    with client(triton, admin_keys=("boss",), api_keys=("ann", "bob", "eve")) as gateway:
        assert load(gateway, "theirs", api_keys=["ann", "bob"]).status_code == 200
        assert load(gateway, "everybodys").status_code == 200
        for key, seen in (("ann", True), ("bob", True), ("eve", False)):
            assert ("theirs" in models(gateway, key)) == seen
            headers = {"Authorization": f"Bearer {key}"}
            response = gateway.post(
                "/v1/chat/completions", json={"model": "theirs", "messages": MESSAGES}, headers=headers
            )
            assert response.status_code == (200 if seen else 404)
            assert gateway.get("/v1/models/theirs", headers=headers).status_code == (200 if seen else 404)
        assert "ann" not in str(triton.adapters)


BAD_BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "relative": ({"lora_path": "adapters/sql"}, "lora_path"),
    "unknown key": ({"api_keys": ["mallory"]}, "api_keys"),
    "the model itself": ({"lora_name": "fake-model"}, "lora_name"),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_bad_body_is_refused_by_name(triton: FakeTriton, case: str) -> None:
    body, param = BAD_BODIES[case]
    with client(triton, admin_keys=("boss",)) as gateway:
        rejected = load(gateway, "sql", **body)
        assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, param)
    assert triton.adapters == {}


def test_the_tokens_of_messages_are_reported_as_their_adapter_is_asked(triton: FakeTriton) -> None:
    triton.adapters = {"sql": ""}
    messages = [{"role": "user", "content": "Hi"}]
    with client(triton) as http:
        for path, field in (("/tokenize", "tokens"), ("/v1/chat/completions/render", "token_ids")):
            reported = {
                name: http.post(path, json={"model": name, "messages": messages}).json()[field]
                for name in ("fake-model", "sql")
            }
            assert reported == {"fake-model": token_ids("<user>Hi"), "sql": token_ids("[sql]<user>Hi")}
        body = {"model": "sql", "messages": messages, "max_tokens": 1}
        counted = http.post("/v1/messages/count_tokens", json=body).json()
        assert counted == {"input_tokens": len(token_ids("[sql]<user>Hi"))}
