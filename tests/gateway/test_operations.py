"""Keys, limits, ids, logs, metrics: what an operator relies on."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_gateway.qos import Qos, QosConfigError
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway
from tests.support.http_host import Reply, running_host
from tests.support.waiting import eventually

HELLO: Any = [{"role": "user", "content": "a secret question"}]
BODY = {"model": MODEL, "messages": HELLO}
POLICY = {
    "max_requests": 4,
    "user_groups": ["Gold", "Bronze"],
    "user_group_map": {"Gold": [{"id": "ann", "quota_pct": 100}], "Bronze": [{"id": "default", "quota_pct": 25}]},
}


def connect(url: str, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, **options)


def test_a_key_is_needed_where_keys_are_set(fake: FakeTriton) -> None:
    settings = Settings(triton_address=fake.address, api_keys=("k1", "k2"), allow_origins=("*",))
    with running_gateway(settings) as url, connect(url) as http:
        for header in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic k1"}, {"authorization": "k1"}):
            response = http.get("/v1/models", headers=header)
            assert response.status_code == 401
            body = response.json()
            expected = {
                "message": "Please request with valid api key!",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            }
            assert body["detail"]["error"] == body["error"] == expected
        for key in ("k1", "k2"):
            assert http.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        assert http.post("/v1/chat/completions", content=b"{").status_code == 401  # before anything is read
        assert http.get("/health").status_code == 200
        assert http.get("/openapi.json").status_code == 200
        preflight = {"origin": "http://a", "access-control-request-method": "POST"}
        allowed = http.options("/v1/chat/completions", headers=preflight)
        assert (allowed.status_code, allowed.headers["access-control-max-age"]) == (200, "600")
        assert allowed.headers["access-control-allow-origin"] == "*"


def test_documentation_can_be_switched_off(fake: FakeTriton) -> None:
    with running_gateway(Settings(triton_address=fake.address, disable_fastapi_docs=True)) as url, connect(url) as http:
        assert [http.get(path).status_code for path in ("/", "/openapi.json", "/docs", "/redoc")] == [404] * 4


def test_cors_is_what_the_settings_say(fake: FakeTriton) -> None:
    settings = Settings(
        triton_address=fake.address,
        allow_origins=("http://a.example",),
        allow_methods=("POST",),
        allow_headers=("x-mine",),
        allow_credentials=True,
    )
    headers = {"access-control-request-method": "POST", "access-control-request-headers": "x-mine"}
    with running_gateway(settings) as url, connect(url) as http:
        response = http.options("/v1/models", headers={"origin": "http://a.example", **headers})
        assert response.headers["access-control-allow-origin"] == "http://a.example"
        assert response.headers["access-control-allow-credentials"] == "true"
        assert response.headers["access-control-allow-methods"] == "POST"
        assert (
            "access-control-allow-origin"
            not in http.options("/v1/models", headers={"origin": "http://b", **headers}).headers
        )


def test_no_web_page_may_call_unless_it_is_named(fake: FakeTriton) -> None:
    preflight = {"origin": "http://a", "access-control-request-method": "POST"}
    with running_gateway(Settings(triton_address=fake.address)) as url, connect(url) as http:
        for response in (
            http.options(
                "/v1/chat/completions", headers=preflight | {"access-control-request-headers": "content-type"}
            ),
            http.get("/v1/models", headers={"origin": "http://a"}),
        ):
            assert not [name for name in response.headers if name.startswith("access-control")]
        assert http.options("/v1/chat/completions", headers=preflight).status_code == 405


@pytest.mark.parametrize(
    ("origins", "origin", "status"),
    [
        ((), None, 200),
        ((), "http://{host}", 200),
        ((), "http://evil.example", 403),
        ((), "null", 403),
        ((), "http://[", 403),
        (("http://a.example",), "http://a.example", 200),
        (("http://a.example",), "http://a.example:81", 403),
        (("*",), "http://evil.example", 200),
    ],
)
def test_without_keys_a_form_of_another_page_changes_nothing(
    fake: FakeTriton, tmp_path: Path, origins: tuple[str, ...], origin: str | None, status: int
) -> None:
    settings = Settings(triton_address=fake.address, files_dir=tmp_path, allow_origins=origins)
    with running_gateway(settings) as url, connect(url) as http:
        headers = {} if origin is None else {"origin": origin.format(host=http.base_url.netloc.decode())}
        row = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"a"}}'
        form: Any = {"files": {"file": ("a.jsonl", row)}, "data": {"purpose": "batch"}}
        assert http.post("/v1/files", headers=headers, **form).status_code == status
        assert len(http.get("/v1/files").json()["data"]) == (status == 200)
    with running_gateway(replace(settings, api_keys=("k",))) as url, connect(url) as http:
        response = http.post("/v1/files", headers=headers | {"authorization": "Bearer k"}, **form)
        assert response.status_code == 200  # who has a key is no page of somebody else's


async def test_requests_beyond_the_limit_are_reported_to_come_later(fake: FakeTriton) -> None:
    fake.script = Script(hold_after=0)
    with running_gateway(Settings(triton_address=fake.address, max_requests=2)) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            running = [asyncio.create_task(http.post("/v1/chat/completions", json=BODY)) for _ in range(2)]
            await eventually(lambda: len(fake.requests) == 2)
            rejected = await http.post("/v1/chat/completions", json=BODY)
            assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
            assert rejected.json()["error"]["type"] == "rate_limit_error"
            assert (await http.get("/health")).status_code == 200
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            fake.script = Script()

            async def served() -> bool:
                return (await http.post("/v1/chat/completions", json=BODY)).status_code == 200

            await eventually(served)


def test_every_response_has_a_request_id_of_ours_or_the_caller_s(http: httpx.Client) -> None:
    first, second = (http.get("/health").headers["x-request-id"] for _ in range(2))
    assert first != second
    assert http.get("/nothing").headers["x-request-id"]
    assert http.get("/health", headers={"x-request-id": "trace-7"}).headers["x-request-id"] == "trace-7"
    assert http.get("/health", headers={"x-request-id": "a b" * 99}).headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("shown", [0, 12])
def test_logs_report_requests_but_prompts_only_when_asked(
    fake: FakeTriton, caplog: pytest.LogCaptureFixture, shown: int
) -> None:
    caplog.set_level(logging.INFO)
    with running_gateway(Settings(triton_address=fake.address, max_log_len=shown)) as url, connect(url) as http:
        http.post("/v1/chat/completions", json=BODY, headers={"x-request-id": "trace-8"})
        http.post("/v1/completions", json={"model": MODEL, "prompt": "another secret question"})
    assert "request=trace-8 method=POST path=/v1/chat/completions status=200" in caplog.text
    assert fake.requests[0].id in caplog.text
    assert "secret question" not in caplog.text
    assert ("another secr" in caplog.text) == bool(shown)


def test_metrics_of_gateway_and_engine_are_one_page(fake: FakeTriton) -> None:
    with running_host(lambda _: Reply(b"turbomind_requests_running 3\n")) as triton:
        settings = Settings(triton_address=fake.address, triton_metrics_url=f"{triton.url}/metrics")
        with running_gateway(settings) as url, connect(url) as http:
            http.post("/v1/chat/completions", json=BODY)
            http.post("/v1/chat/completions", json={})
            http.get("/v1/whatever")
            page = http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    count = 'lmdeploy_gateway_requests_total{method="POST",path="/v1/chat/completions",status='
    assert f'{count}"200"}} 1.0' in page.text
    assert f'{count}"400"}} 1.0' in page.text
    assert 'path="other",status="404"' in page.text
    assert "lmdeploy_gateway_requests_open 1.0" in page.text
    assert "turbomind_requests_running 3" in page.text


def test_metrics_come_without_the_engine_s_when_it_is_down(fake: FakeTriton) -> None:
    settings = Settings(triton_address=fake.address, triton_metrics_url="http://127.0.0.1:1/metrics")
    with running_gateway(settings) as url, connect(url) as http:
        assert "lmdeploy_gateway_requests_open" in http.get("/metrics").text


async def test_users_have_priorities_and_quotas(fake: FakeTriton, tmp_path: Path) -> None:
    policy = tmp_path / "qos.json"
    policy.write_text(json.dumps(POLICY))
    fake.script = Script(hold_after=0)
    with running_gateway(Settings(triton_address=fake.address, qos_config_path=policy)) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:

            def post(user: str) -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(http.post("/v1/chat/completions", json={**BODY, "user": user}))

            running = [post("ann"), post("ann"), post("stranger")]
            await eventually(lambda: len(fake.requests) == 3)
            assert sorted(request.inputs["priority"] for request in fake.requests) == [0, 0, 1]
            rejected = await post("another")
            assert (rejected.status_code, rejected.json()["error"]["param"]) == (429, "user")
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            fake.script = Script()

            async def served() -> bool:
                return (await post("another")).status_code == 200

            await eventually(served)


def keyed_policy(*users: tuple[str, list[str]]) -> str:
    entries: list[Any] = [{"id": name, "quota_pct": 100, "api_keys": keys} for name, keys in users]
    default = {"id": "default", "quota_pct": 100}
    return json.dumps({"user_groups": ["Gold", "Bronze"], "user_group_map": {"Gold": entries, "Bronze": [default]}})


@pytest.mark.parametrize(
    ("key", "claims", "priority"),
    [
        ("k-ann", None, 0),
        ("k-ann", "bob", 0),  # its own user, whatever it claims
        ("k-front", "cyd", 0),
        ("k-front", "dan", 0),
        ("k-front", "ann", 1),
        ("k-front", None, 1),
        ("k-other", "ann", 1),
        ("k-other", "cyd", 1),
        ("k-other", "", 1),
    ],
)
def test_no_key_speaks_for_a_user_of_another_one(
    fake: FakeTriton, tmp_path: Path, key: str, claims: str | None, priority: int
) -> None:
    policy = tmp_path / "qos.json"
    policy.write_text(keyed_policy(("ann", ["k-ann"]), ("cyd", ["k-front"]), ("dan", ["k-front"])))
    keys = ("k-ann", "k-front", "k-other")
    settings = Settings(triton_address=fake.address, qos_config_path=policy, api_keys=keys)
    with running_gateway(settings) as url, connect(url, headers={"authorization": f"Bearer {key}"}) as http:
        assert http.post("/v1/chat/completions", json=BODY | {"user": claims}).status_code == 200
    assert fake.requests[0].inputs["priority"] == priority


def test_a_policy_says_whose_keys_its_users_have(tmp_path: Path) -> None:
    path = tmp_path / "qos.json"
    path.write_text(keyed_policy(("ann", [])))
    Qos.load(path)
    with pytest.raises(QosConfigError, match="ann needs api_keys"):
        Qos.load(path, ("k-ann",))
    path.write_text(keyed_policy(("ann", ["k-ann"])))
    Qos.load(path, ("k-ann",))
    with pytest.raises(QosConfigError, match="not among --api-keys") as rejected:
        Qos.load(path, ("k-bob",))
    assert "k-ann" not in str(rejected.value)
    with pytest.raises(QosConfigError, match="start it with --api-keys"):
        Qos.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON"),
        ("{}", "user_groups"),
        ('{"user_groups": ["a"], "user_group_map": {"a": [{"id": "x", "quota_pct": 101}]}}', "quota_pct"),
        ('{"user_groups": ["a"], "user_group_map": {"b": []}}', "'b'"),
    ],
)
def test_a_bad_policy_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "qos.json"
    path.write_text(text)
    with pytest.raises(QosConfigError, match=message):
        Qos.load(path)
    with pytest.raises(QosConfigError, match="cannot be read"):
        Qos.load(tmp_path / "none.json")
