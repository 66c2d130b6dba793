"""Models that sleep give their memory back and lose nothing: at the inputs of Triton's model ``turbomind``."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmdeploy.serve.ports import Ports
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.repository import set_parameter, template_dir
from tests.support.adapters import make_adapter
from tests.support.hybrid_models import make_hybrid
from tests.support.servers import START
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.support.waiting import eventually_sync

ENGINE = {"dtype": "float32", "cache_max_entry_count": 64, "cache_block_seq_len": 16, "session_len": 512}
PROMPT = [7 + i % 300 for i in range(100)]
PROMPTS = [[i + 11 * j % 300 for j in range(70)] for i in range(4)]
WEIGHTS = "model.safetensors"
A, B, C, HUGE = SHARING = ("turbomind.a", "turbomind.b", "turbomind.c", "turbomind.huge")  # a budget


class Server:
    """A tritonserver of engines alone."""

    def __init__(self, triton: TritonServer, http: httpx.Client) -> None:
        self.triton, self.http = triton, http

    def post(self, model: str, **inputs: Any) -> httpx.Response:
        return self.http.post(
            f"/{model}/generate", json={"control_key": self.triton.control_key, "error_codes": True, **inputs}
        )

    def generate(self, model: str, input_ids: list[int] = PROMPT, **inputs: Any) -> dict[str, Any]:
        response = self.post(model, **{"input_ids": input_ids, "max_new_tokens": 8, "ignore_eos": True, **inputs})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def control(self, model: str, action: str, **inputs: Any) -> dict[str, Any]:
        report: dict[str, Any] = self.query(model, sleep_control=action, **inputs)
        return report

    def query(self, model: str, **inputs: Any) -> Any:
        response = self.post(model, **inputs)
        assert response.status_code == 200, response.text
        return json.loads(response.json()["text_output"])

    def state(self, model: str) -> str:
        state: str = self.control(model, "report")["state"]
        return state

    def metric(self, name: str, model: str) -> float:
        lines = httpx.get(self.triton.metrics_url, trust_env=False).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{model="{model}"'))


@contextlib.contextmanager
def running(
    base: Path, models: Mapping[str, tuple[Path, Mapping[str, Any]]], **parameters: Mapping[str, str]
) -> Iterator[Server]:
    """Serve engines by name, each of a model with settings besides `ENGINE`; `parameters` are of its config.pbtxt."""
    repository = base / "repository"
    template = (template_dir() / "turbomind" / "config.pbtxt").read_text()
    for name, (path, engine) in models.items():
        resolve(path)  # here, where transformers is loaded
        given = {"model_path": str(path), "engine_config": json.dumps({**ENGINE, **engine})}
        text = template.replace('name: "turbomind"', f'name: "{name}"', 1)
        for key, value in {**given, **parameters.get("all", {}), **parameters.get(name, {})}.items():
            text = set_parameter(text, key, value)
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    with TritonServer(repository, ports=Ports.free()) as triton:
        triton.wait_ready(START)
        url = f"http://{triton.http_address}/v2/models"
        with httpx.Client(base_url=url, timeout=START, trust_env=False) as http:  # tritonserver waits for open ones
            yield Server(triton, http)
        assert triton.wait(0) in (None, 0), triton.failure("tritonserver crashed during the tests")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sleep")


@pytest.fixture(scope="module")
def llama(base: Path) -> Path:
    return make_tiny_llama(base / "llama", max_position_embeddings=8192)


def windows(path: Path) -> Path:
    return make_tiny(
        path, "Gemma3ForCausalLM", num_hidden_layers=4, sliding_window=40, head_dim=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def server(base: Path, llama: Path) -> Iterator[Server]:
    """Serve models that have all the memory that they want."""
    kept = {"cache_max_entry_count": 200, "cache_dir": str(base / "cache")}
    models: dict[str, tuple[Path, Mapping[str, Any]]] = {
        "plain": (llama, {}),
        "idle": (llama, {}),
        "lost": (make_tiny_llama(base / "lost", seed=1), {}),
        "llama": (llama, kept),
        "windows": (windows(base / "windows"), kept),
        "states": (make_hybrid(base / "states", "Qwen3.5"), kept),
    }
    with running(base / "free", models, idle={"idle_timeout": "0.1"}) as server:
        yield server


def test_a_model_sleeps_when_told_and_wakes_when_asked(server: Server) -> None:
    alone = server.generate("plain")
    awake = server.control("plain", "report")
    assert (awake["state"], awake["level"], awake["waiting"], awake["error"]) == ("awake", 0, 0, "")
    assert awake["bytes"] == awake["awake_bytes"] > 0
    assert awake["idle_seconds"] >= 0
    assert awake["sleeps_in"] is None
    wakes = server.metric("turbomind_model_wakes_total", "plain")
    for level in (1, 2):
        asleep = server.control("plain", "sleep", sleep_level=level)
        assert (asleep["state"], asleep["level"]) == ("asleep", level)
        assert (0 < asleep["bytes"] < awake["bytes"]) if level == 1 else asleep["bytes"] == 0
        assert server.metric("turbomind_model_awake", "plain") == 0
        assert server.state("plain") == "asleep"
        answer = server.generate("plain")
        assert answer["token_ids"] == alone["token_ids"]
        assert answer["cached_token_len"] == 0
        assert answer["load_seconds"] > 0
        assert server.generate("plain")["load_seconds"] == 0
        assert server.control("plain", "report")["bytes"] == awake["bytes"]
        assert server.metric("turbomind_model_awake", "plain") == 1
    assert server.metric("turbomind_model_wakes_total", "plain") == wakes + 2


def test_a_sleeping_model_tells_what_is_asked_of_it_and_keeps_sessions(server: Server) -> None:
    server.generate("plain", session_id=5, sequence_start=True)
    server.control("plain", "sleep", sleep_level=2)
    assert server.query("plain", limits=True)["session_len"] == ENGINE["session_len"]
    assert server.query("plain", lora_control="list") == []
    assert server.query("plain", cache_control="report")["device"]["idle"] == 0
    assert server.state("plain") == "asleep"
    assert server.generate("plain", [5, 6, 7], session_id=5)["history_token_len"] >= len(PROMPT)
    for inputs, error in (
        ({"sleep_control": "doze"}, "must be report, sleep or wake"),
        ({"sleep_control": "sleep", "sleep_level": 3}, "sleep_level must be 1 or 2"),
        ({"sleep_control": "sleep", "control_key": "guessed"}, "needs the control_key"),
    ):
        rejected = server.post("plain", **inputs)
        assert "INVALID_ARGUMENT" in rejected.text
        assert error in rejected.text


def test_a_model_has_its_adapters_after_it_slept(server: Server, llama: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", llama, alpha=64)
    server.query("plain", lora_control="load", lora_name="mine", lora_path=str(adapter), lora_note="note")
    adapted = server.generate("plain", lora_name="mine")["token_ids"]
    assert adapted != server.generate("plain")["token_ids"]
    for level in (1, 2):
        server.control("plain", "sleep", sleep_level=level)
        assert server.query("plain", lora_control="list") == [["mine", "note"]]
        assert server.generate("plain", lora_name="mine")["token_ids"] == adapted
    assert server.query("plain", lora_control="unload", lora_name="mine") == []


def test_a_model_sleeps_when_it_is_idle_for_its_timeout_or_that_of_the_last_request(server: Server) -> None:
    eventually_sync(lambda: server.state("idle") == "asleep")
    server.generate("idle", keep_alive=3600)
    assert 3000 < server.control("idle", "report")["sleeps_in"] <= 3600
    server.generate("idle", keep_alive=-1)
    assert server.control("idle", "report")["sleeps_in"] is None
    assert server.control("idle", "wake")["state"] == "awake"
    eventually_sync(lambda: server.state("idle") == "asleep")
    server.generate("idle", keep_alive=-1)
    server.generate("idle", keep_alive=0)
    eventually_sync(lambda: server.state("idle") == "asleep")
    assert server.control("idle", "report")["bytes"] == 0


@pytest.mark.parametrize("model", ["llama", "windows", "states"])
def test_a_conversation_continues_from_files_after_its_model_slept(server: Server, model: str) -> None:
    first = server.generate(model)
    turn = [*PROMPT, *first["token_ids"], *range(50, 60)]
    kept = server.generate(model, turn)
    for level in (1, 2):
        server.control(model, "sleep", sleep_level=level)
        again = server.generate(model, turn)
        assert again["token_ids"] == kept["token_ids"]
        assert again["cached_token_len"] >= 64


def truncate(weights: Path) -> None:
    weights.write_bytes(weights.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (Path.unlink, "could not be woken"),
        (truncate, "is not the file that"),
        (lambda weights: weights.write_bytes(weights.read_bytes()[::-1]), "is not the file that"),
    ],
    ids=["vanished", "truncated", "replaced"],
)
def test_a_model_whose_weights_are_not_there_is_an_error_until_they_are_back(
    server: Server, base: Path, change: Callable[[Path], object], error: str
) -> None:
    weights = base / "lost" / WEIGHTS
    alone, whole, state = server.generate("lost")["token_ids"], weights.read_bytes(), weights.stat()
    server.control("lost", "sleep", sleep_level=2)
    change(weights)
    for _ in range(2):
        rejected = server.post("lost", input_ids=PROMPT)
        assert "UNAVAILABLE" in rejected.text
        assert error in rejected.text
        assert str(weights) in rejected.text
    report = server.control("lost", "report")
    assert (report["state"], report["waiting"]) == ("asleep", 0)
    assert str(weights) in report["error"]
    server.generate("plain")
    weights.write_bytes(whole)
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert server.generate("lost")["token_ids"] == alone
    assert server.control("lost", "report")["error"] == ""


# ---- models that share memory ----


class Sharing(Server):
    """Models that do not fit into the memory together."""

    budget: int
    alone: Mapping[tuple[str, int], list[int]]

    def states(self) -> list[str]:
        """Return the states of the models, which together hold no more than the budget."""
        reports = [self.control(name, "report") for name in SHARING]
        assert sum(report["bytes"] for report in reports) <= self.budget
        return [report["state"] for report in reports]

    def expect_answers_alone(self, *names: str) -> None:
        for name in names:
            for i, prompt in enumerate(PROMPTS):
                assert self.generate(name, prompt)["token_ids"] == self.alone[name, i]

    def expect_nothing_damaged(self) -> None:
        for name in (A, B, C):
            assert self.query(name, cache_control="report")["disk"]["damaged"] == 0


@pytest.fixture(scope="module")
def sharing(base: Path, llama: Path) -> Iterator[Sharing]:
    engine = {"session_len": 8192, "cache_max_entry_count": 3000}
    models: dict[str, tuple[Path, Mapping[str, Any]]] = {
        A: (llama, engine),
        B: (make_tiny_llama(base / "b", seed=1, max_position_embeddings=8192), engine),
        C: (make_hybrid(base / "c", "Qwen3.5"), {**engine, "cache_max_entry_count": 600}),
    }
    with running(base / "alone", models) as server:
        alone = {(name, i): server.generate(name, PROMPTS[i])["token_ids"] for name in models for i in range(4)}
        sizes = {name: server.control(name, "report")["bytes"] for name in models}
    kept = {"cache_dir": str(base / "shared")}
    models = {name: (path, {**settings, **kept}) for name, (path, settings) in models.items()}
    models[HUGE] = (llama, {"cache_max_entry_count": 10000})
    budget = int(0.9 * (sizes[A] + sizes[B]))  # room for any one of them, and not for these two
    assert max(sizes.values()) <= budget
    with running(base / "sharing", models, all={"models_memory": str(budget)}) as server:
        shared = Sharing(server.triton, server.http)
        shared.budget, shared.alone = budget, alone
        for name, size in sizes.items():  # planned as what they take once they are loaded
            assert shared.control(name, "report")["awake_bytes"] == size
        yield shared


def test_models_share_memory_that_is_too_small_for_all(sharing: Sharing) -> None:
    assert "asleep" in sharing.states()  # which one depends on the order in which Triton loads them
    for name in SHARING:
        assert sharing.query(name, limits=True)["session_len"] == (512 if name == HUGE else 8192)
    order = random.Random(1).sample(list(sharing.alone) * 4, 48)
    with ThreadPoolExecutor(4) as pool:
        for key, answer in zip(
            order, pool.map(lambda one: sharing.generate(one[0], PROMPTS[one[1]]), order), strict=True
        ):
            assert answer["token_ids"] == sharing.alone[key]
    assert "asleep" in sharing.states()
    rejected = sharing.post(HUGE, input_ids=PROMPT, max_new_tokens=4)
    assert "UNAVAILABLE" in rejected.text
    assert "all models may take" in rejected.text
    assert "raise models_memory" in sharing.control(HUGE, "report")["error"]


def test_requests_wait_in_order_for_a_model_whose_memory_another_needs(sharing: Sharing) -> None:
    sharing.control(C, "sleep", sleep_level=2)
    sharing.control(B, "sleep", sleep_level=2)
    with ThreadPoolExecutor(8) as pool:

        def send(model: str, name: str, **inputs: Any) -> Future[httpx.Response]:
            given = {"input_ids": PROMPTS[0], "ignore_eos": True, "max_new_tokens": 8, **inputs}
            return pool.submit(sharing.post, model, id=name, **given)

        def wait_for(count: int) -> None:
            eventually_sync(lambda: sharing.control(B, "report")["waiting"] == count)

        runs = send(A, "runs", max_new_tokens=8000)
        eventually_sync(lambda: sharing.control(A, "report")["idle_seconds"] is None)
        eventually_sync(lambda: sharing.state(A) == "awake")
        first = send(B, "first")
        wait_for(1)
        stopped = send(B, "stopped")
        wait_for(2)
        overdue = send(B, "overdue", timeout_ms=1)
        assert "did not finish in the time" in overdue.result().text
        assert sharing.post(B, STOP=1, stop_request_id="stopped").status_code == 200
        assert stopped.result().json()["finish_reason"] == "cancelled"
        wait_for(1)
        assert sharing.metric("turbomind_model_waiting_requests", B) == 1
        behind = send(A, "behind")  # its model answers, but the memory is promised
        eventually_sync(lambda: sharing.control(A, "report")["waiting"] == 1)
        assert not first.done()
        sharing.post(A, STOP=1, stop_request_id="runs")
        assert runs.result().json()["finish_reason"] == "cancelled"
        assert first.result().json()["token_ids"] == sharing.alone[B, 0]
        assert first.result().json()["load_seconds"] > 0
        assert behind.result().status_code == 200
        assert sharing.state(A) == "awake"


def test_a_full_disk_costs_a_swap_its_files_alone(sharing: Sharing) -> None:
    pid = sharing.triton.pid
    assert pid is not None
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        sharing.generate(A, PROMPT[::-1])
        sharing.expect_answers_alone(B)
        assert sharing.query(A, cache_control="report")["disk"]["failures"] > 0
        sharing.expect_answers_alone(C, A)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    sharing.expect_answers_alone(A, B, C)
    sharing.expect_nothing_damaged()


def test_a_server_that_was_killed_while_models_swap_continues_their_conversations(sharing: Sharing) -> None:
    sharing.expect_answers_alone(A, B)
    sharing.control(B, "sleep", sleep_level=2)  # what it has computed is in files
    with ThreadPoolExecutor(2) as pool:
        swaps = pool.submit(sharing.post, A, input_ids=PROMPTS[1], max_new_tokens=4)
        sharing.post(C, input_ids=PROMPT, max_new_tokens=1)
        again = pool.submit(sharing.post, B, input_ids=PROMPTS[1], max_new_tokens=4)
        eventually_sync(lambda: sharing.state(B) == "waking" or again.done())
        assert sharing.triton.pid is not None
        os.kill(sharing.triton.pid, signal.SIGKILL)
        for request in (swaps, again):
            with contextlib.suppress(httpx.HTTPError):
                request.result()
    assert sharing.triton.wait(START) == -signal.SIGKILL
    sharing.triton.start()
    sharing.triton.wait_ready(START)
    assert sharing.generate(B, [*PROMPTS[0], 5])["cached_token_len"] >= 64
    sharing.expect_answers_alone(A, B, C)
    sharing.expect_nothing_damaged()
