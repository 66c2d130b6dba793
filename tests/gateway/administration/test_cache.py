"""`/v1/cache`: what administrators see of the KV cache, and have it forget and keep."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from openai_gateway.app import create_app
from openai_gateway.middleware.api_keys import salt_of_key
from openai_gateway.registry import DROP_CACHE, PIN_PROMPT, UNPIN_PROMPT
from openai_gateway.settings import Settings
from tests.support.fake_triton import CACHE_REPORT, FakeTriton, token_ids

ADMIN = {"Authorization": "Bearer boss"}
TIERS = {"model": "fake-model"} | {tier: CACHE_REPORT[tier] for tier in ("device", "host", "disk", "pinned")}


def client(triton: FakeTriton, **settings: Any) -> TestClient:
    defaults = {"admin_keys": ("boss",), "api_keys": ("ann", "bob")}
    return TestClient(create_app(Settings(triton_address=triton.address, **(defaults | settings))), headers=ADMIN)


def controls(triton: FakeTriton) -> list[dict[str, Any]]:
    """Return the engine's requests about its cache."""
    kept = ("cache_control", "input_ids", "cache_salt", "lora_name")
    return [{name: inputs[name] for name in kept if name in inputs} for inputs in triton.cache_controls]


def test_what_the_cache_holds_is_shown_by_tier(triton: FakeTriton) -> None:
    with client(triton) as gateway:
        assert gateway.get("/v1/cache").json() == {"object": "list", "data": [TIERS]}
    assert controls(triton) == [{"cache_control": "report"}]


@pytest.mark.parametrize(
    ("body", "actions"),
    [({}, ["drop_memory", "drop_files"]), ({"tier": "memory"}, ["drop_memory"]), ({"tier": "disk"}, ["drop_files"])],
)
def test_a_tier_is_dropped(triton: FakeTriton, body: dict[str, Any], actions: list[str]) -> None:
    with client(triton) as gateway:
        assert gateway.post(DROP_CACHE, json=body).json() == TIERS
        assert gateway.post(DROP_CACHE, json={"tier": "host"}).status_code == 400
        assert gateway.post(DROP_CACHE, json={"model": "other"}).status_code == 404
    assert [control["cache_control"] for control in controls(triton)] == actions


def test_a_prompt_is_computed_and_then_pinned_as_its_requests_have_it(triton: FakeTriton) -> None:
    triton.adapters = {"sql": ""}
    body = {"prompt": "Be brief.", "cache_salt": "s", "lora_name": "sql"}
    ids = token_ids("Be brief.")
    with client(triton) as gateway:
        assert gateway.post(PIN_PROMPT, json=body).json() == TIERS | {"tokens": 32}
        (computed,) = triton.requests
        assert computed.inputs["input_ids"] == ids
        assert computed.inputs["max_new_tokens"] == 1
        assert (computed.inputs["cache_salt"], computed.inputs["lora_name"]) == ("s", "sql")
        assert gateway.post(UNPIN_PROMPT, json=body).json() == TIERS
        assert len(triton.requests) == 1
    of_prompt = {"input_ids": ids, "cache_salt": "s", "lora_name": "sql"}
    assert controls(triton) == [{"cache_control": name} | of_prompt for name in ("pin", "unpin")]


def test_messages_are_pinned_with_the_template(triton: FakeTriton) -> None:
    messages = [{"role": "system", "content": "Be brief."}]
    with client(triton) as gateway:
        assert gateway.post(PIN_PROMPT, json={"messages": messages}).status_code == 200
    assert controls(triton) == [{"cache_control": "pin", "input_ids": token_ids("<system>Be brief.")}]


def test_where_keys_have_salts_a_prompt_is_pinned_for_one_of_them(triton: FakeTriton) -> None:
    with client(triton, cache_salt_by_key=True) as gateway:
        for body in ({}, {"api_key": "eve"}):
            rejected = gateway.post(PIN_PROMPT, json={"prompt": "Hi"} | body)
            assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "api_key")
        assert gateway.post(PIN_PROMPT, json={"prompt": "Hi", "api_key": "ann"}).status_code == 200
    assert controls(triton)[0]["cache_salt"] == salt_of_key("ann", None)


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, {"prompt": 5}])
def test_a_pin_is_of_one_prompt(triton: FakeTriton, body: dict[str, Any]) -> None:
    with client(triton) as gateway:
        assert gateway.post(PIN_PROMPT, json=body).status_code == 400
    assert triton.requests == []
    assert triton.cache_controls == []


def test_callers_see_and_do_nothing(triton: FakeTriton) -> None:
    with client(triton) as gateway:
        for headers in ({"Authorization": "Bearer ann"}, {"Authorization": ""}):
            assert gateway.get("/v1/cache", headers=headers).status_code == 401
            for path in (DROP_CACHE, PIN_PROMPT, UNPIN_PROMPT):
                assert gateway.post(path, json={"prompt": "Hi"}, headers=headers).status_code == 401
    assert triton.cache_controls == []
