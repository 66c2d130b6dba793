"""Replicas on a real local Ray: routed, streamed, killed, scaled and drained. One cluster for the file."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from lmdeploy.serve.ports import free_ports
from lmdeploy.turbomind.engine_dir import resolve
from tests.abuse.attacks import ray_requests, responses, trap
from tests.support.adapters import make_adapter
from tests.support.processes import children, command_line, threads
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually, eventually_sync

ray = pytest.importorskip("ray", reason="needs the extra [ray]")

pytestmark = pytest.mark.filterwarnings("ignore:`look_back_period_s`")

START = 180.0  # seconds on a busy machine
LONG = 3000  # tokens: some seconds
# Ray reports its controller metrics so often, not every 10 s.
QUICK = {"RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.3", "RAY_USAGE_STATS_ENABLED": "0"}
QUICK["RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S"] = "0.3"
# Of what a busy machine needs time for, Ray ends what is not there in 5, 10 and 30 seconds.
QUICK |= {f"RAY_SERVE_PROXY_{what}_TIMEOUT_S": "180" for what in ("READY_CHECK", "HEALTH_CHECK")}
QUICK["RAY_gcs_server_port_wait_time_s"] = "180"
KEY = {"authorization": "Bearer sk-ray"}
OPTIONS = {"dtype": "float32", "max-batch-size": 1, "cache-max-entry-count": 256, "session-len": 4096, "threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def adapter(model: Path) -> Path:
    return make_adapter(model.parent / "verses", model)


def start_ray() -> None:
    """Start a local cluster; its processes have 30 seconds that cannot be set, which are over on a busy machine."""
    for attempt in range(4):
        try:
            # Ray starts a process beforehand for each processor it finds.
            ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
            return
        except Exception:
            ray.shutdown()
            if attempt == 3:
                raise


@pytest.fixture(scope="module")
def url(model: Path, adapter: Path) -> Iterator[str]:
    """Two replicas, three under load."""
    (port,) = free_ports(1)
    from ray import serve

    from lmdeploy.serve.ray import RaySettings, app

    before = dict(os.environ)
    os.environ.update(QUICK)
    try:
        resolve(model)  # here, where transformers is loaded: each replica would load it too
        start_ray()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        settings = RaySettings(
            model=str(model),
            options=OPTIONS | {"adapters": {"verses": str(adapter)}, "api-keys": ["sk-ray"]},
            replicas=2,
            cpus=0,
            max_replicas=3,
            waiting_per_replica=1,
            target_requests=4,
            upscale_seconds=0.2,
            downscale_seconds=1,
            look_back_seconds=2,
            health_seconds=1,
        )
        serve.run(app(settings), name="lmdeploy")
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        for name in QUICK.keys() - before.keys():
            del os.environ[name]


def running() -> int:
    from ray import serve
    from ray.serve.schema import ReplicaState

    states = serve.status().applications["lmdeploy"].deployments["replica"].replica_states
    return states.get(ReplicaState.RUNNING, 0)


def servers(model: Path) -> list[int]:
    """Return the processes of ``lmdeploy serve api_server`` for a model."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it ended meanwhile
                continue
            if "api_server" in words and str(model) in words and words[1:3] == ["-m", "lmdeploy"]:
                found.append(int(entry.name))
    return sorted(found)


@contextlib.contextmanager
def on_one_core(servers: list[int]) -> Iterator[None]:
    """Keep the engines of servers on one core, together."""
    cores = os.sched_getaffinity(0)
    engines = [thread for server in servers for engine in children(server) for thread in threads(engine)]
    move(engines, {min(cores)})
    try:
        yield
    finally:
        move(engines, cores)


def move(threads: list[int], cores: set[int]) -> None:
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, cores)


def complete(url: str, text: str, **more: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2, **more}
    headers = KEY | ({"x-session-id": more.pop("session")} if "session" in more else {})
    body.pop("session", None)
    response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False)
    assert response.status_code == 200, response.text
    return response


def test_two_replicas_answer_an_openai_client_whole_and_streamed(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="sk-ray", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny", "verses"]
    request: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 1}
    whole = client.chat.completions.create(**request)
    events = list(client.chat.completions.create(**request, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole.choices[0].message.content
    assert len(events) > 3
    replicas = {complete(url, f"number {number}").headers["x-replica"] for number in range(32)}
    assert len(replicas) == 2


def test_a_session_and_a_long_prefix_stay_with_the_replica_that_has_them(url: str) -> None:
    sessions: dict[str, set[str]] = {}
    prefixes: dict[str, set[str]] = {}
    for turn in range(2):
        for number in range(12):
            name = f"session {number}"
            sessions.setdefault(name, set()).add(complete(url, f"{turn}", session=name).headers["x-replica"])
            shared = f"Document {number}. " * 60
            prefixes.setdefault(shared, set()).add(complete(url, shared + str(turn)).headers["x-replica"])
    assert [len(replicas) for replicas in (*sessions.values(), *prefixes.values())] == [1] * 24
    assert len(set().union(*sessions.values())) == len(set().union(*prefixes.values())) == 2


def test_errors_of_replicas_come_through_and_adapters_are_not_changed_in_one_of_them(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False, headers=KEY) as http:
        wrong = http.post("/v1/chat/completions", json={"model": "nobody", "messages": []})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        assert http.get("/nowhere").json()["error"]["code"] == "unknown_url"
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", content=b"{", headers={"content-type": "application/json"}).is_client_error
        assert http.post("/v1/completions", content=b" " * (9 << 20)).status_code == 413
        assert http.post("/v1/load_lora_adapter", json={}).status_code == 404
        assert http.post("/nodes/add", json={"url": "http://192.0.2.1:1"}).status_code == 401


def test_no_request_reaches_another_server_and_none_without_a_key_a_replica(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with trap() as other:
        attacks = ray_requests(other.address, "tiny")
        small = [attack for attack in attacks if attack.connections == 1 and len(attack.sent) < 2**20]
        with ThreadPoolExecutor(32) as rejecting, ThreadPoolExecutor(8) as pool:  # most of an attack is waiting
            rejected = rejecting.map(lambda attack: responses(port, attack), attacks)
            served = pool.map(lambda attack: responses(port, attack.with_key("sk-ray"), timeout=2), small)
            for attack, statuses in zip(attacks, rejected, strict=True):
                assert all(400 <= status < 500 for status in statuses), (attack.name, statuses)
            for attack, statuses in zip(small, served, strict=True):
                assert all(status < 500 for status in statuses), (attack.name, statuses)
        assert not other.visits
    without_key = httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, trust_env=False)
    assert without_key.status_code == 401
    assert "x-replica" not in without_key.headers  # the ingress itself


def test_no_process_shows_a_key(url: str, model: Path) -> None:
    replicas = servers(model)
    assert replicas
    assert not [pid for pid in replicas if "sk-ray" in command_line(pid)]


def test_an_adapter_is_a_model_of_its_name_whoever_answers(url: str) -> None:
    def text(model: str, number: int) -> tuple[str, str]:
        response = complete(url, "x", model=model, max_tokens=8, temperature=0, session=f"{model} {number}")
        assert response.json()["model"] == model
        return response.headers["x-replica"], response.json()["choices"][0]["message"]["content"]

    base, adapted = ({text(model, number) for number in range(12)} for model in ("tiny", "verses"))
    assert len({response for _, response in base}) == len({response for _, response in adapted}) == 1
    assert {response for _, response in base} != {response for _, response in adapted}


async def test_a_client_that_leaves_frees_its_replica(url: str) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": LONG, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=KEY) as http:
        for _ in range(2):  # a batch has one place: who waits behind one of these waits for its end
            async with http.stream("POST", "/v1/completions", json=body) as response:
                await anext(response.aiter_bytes())
        bodies = [body | {"stream": False, "max_tokens": 2, "prompt": str(number)} for number in range(4)]
        replies = await asyncio.wait_for(
            asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies)), START
        )
    assert [response.status_code for response in replies] == [200] * 4
    assert sum(response.json()["usage"]["completion_tokens"] for response in replies) <= 8


async def test_a_killed_replica_is_replaced_while_others_answer(url: str, model: Path) -> None:
    await eventually(lambda: running() == 2 and len(servers(model)) == 2, START)
    (first, second), outcomes = servers(model), []
    is_over = False

    async def keep_asking(http: httpx.AsyncClient, number: int) -> None:
        while not is_over:
            body = {"model": "tiny", "prompt": f"{number}", "max_tokens": 4}
            response = await http.post("/v1/completions", json=body)
            outcomes.append(response.status_code)

    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=START, headers=KEY) as http:
        asking = [asyncio.create_task(keep_asking(http, number)) for number in range(4)]
        await eventually(lambda: len(outcomes) > 8)
        for pid in (*children(first), first):
            os.kill(pid, signal.SIGKILL)
        at_kill = len(outcomes)
        await eventually(lambda: len(outcomes) > at_kill + 8)
        await eventually(lambda: running() == 2 and len(servers(model)) == 2 and first not in servers(model), START)
        is_over = True
        await asyncio.gather(*asking)
    assert second in servers(model)
    assert set(outcomes) == {200}


@pytest.mark.thorough  # two starts of servers; the settings that Ray gets are in tests/serve/test_ray.py
async def test_replicas_are_added_under_load_and_taken_away_after(url: str, model: Path) -> None:
    is_over = False
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-ray", max_retries=0)

    async def load() -> int:
        answered = 0
        while not is_over:
            await client.completions.create(
                model="tiny", prompt="x", max_tokens=200, timeout=START, extra_body={"ignore_eos": True}
            )
            answered += 1
        return answered

    def is_third_there() -> bool:
        assert not any(task.done() for task in loads), "a request failed"
        return running() == 3 and len(servers(model)) == 3

    with on_one_core(servers(model)):  # the third has the others to start on
        loads = [asyncio.create_task(load()) for _ in range(12)]
        await eventually(is_third_there, 2 * START)
        is_over = True
        assert all(await asyncio.gather(*loads))
    await eventually(lambda: running() == 2 and len(servers(model)) == 2, START)


def test_open_responses_are_finished_when_the_application_ends(url: str, model: Path) -> None:
    from ray import serve

    client = OpenAI(base_url=f"{url}/v1", api_key="sk-ray", max_retries=0)
    stream = client.completions.create(
        model="tiny", prompt="x", max_tokens=LONG // 2, stream=True, timeout=60, extra_body={"ignore_eos": True}
    )
    events = iter(stream)
    next(events)
    serve.delete("lmdeploy", _blocking=False)
    rest = list(events)
    assert rest[-1].choices[0].finish_reason == "length"
    eventually_sync(lambda: not servers(model))
