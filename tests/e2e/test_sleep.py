"""Models that sleep give their memory back and lose nothing: at the inputs of Triton's model ``turbomind``."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
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
from tests.support.hybrid_models import make_hybrid
from tests.support.servers import START
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.e2e

ENGINE = {"dtype": "float32", "cache_max_entry_count": 64, "cache_block_seq_len": 16, "session_len": 512}
PROMPT = [7 + i % 300 for i in range(100)]


class Server:
    """A tritonserver of engines alone."""

    def __init__(self, triton: TritonServer) -> None:
        self.triton = triton
        self._http = httpx.Client(base_url=f"http://{triton.http_address}/v2/models", timeout=START, trust_env=False)

    def post(self, model: str, **inputs: Any) -> httpx.Response:
        return self._http.post(
            f"/{model}/generate", json={"control_key": self.triton.control_key, "error_codes": True, **inputs}
        )

    def ask(self, model: str, input_ids: list[int] = PROMPT, **inputs: Any) -> dict[str, Any]:
        response = self.post(model, **{"input_ids": input_ids, "max_new_tokens": 8, "ignore_eos": True, **inputs})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def control(self, model: str, action: str, **inputs: Any) -> dict[str, Any]:
        response = self.post(model, sleep_control=action, **inputs)
        assert response.status_code == 200, response.text
        report: dict[str, Any] = json.loads(response.json()["text_output"])
        return report

    def state(self, model: str) -> str:
        state: str = self.control(model, "report")["state"]
        return state

    def metric(self, name: str, model: str) -> float:
        lines = httpx.get(self.triton.metrics_url, trust_env=False).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{model="{model}"'))


@contextlib.contextmanager
def running(
    base: Path, models: Mapping[str, Path], engine: Mapping[str, Any] = ENGINE, **parameters: str
) -> Iterator[Server]:
    """Serve the engines of `models` by name, each with `parameters` of its config.pbtxt."""
    repository = base / "repository"
    shutil.rmtree(repository, ignore_errors=True)
    template = (template_dir() / "turbomind" / "config.pbtxt").read_text()
    for name, path in models.items():
        resolve(path)  # here, where transformers is loaded
        given = {"model_path": str(path), "engine_config": json.dumps(engine), **parameters}
        text = template.replace('name: "turbomind"', f'name: "{name}"', 1)
        for key, value in given.items():
            text = set_parameter(text, key, value)
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    with TritonServer(repository, ports=Ports.free()) as triton:
        triton.wait_ready(START)
        yield Server(triton)
        assert triton.wait(0) in (None, 0), triton.failure("tritonserver crashed during the tests")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("llama") / "llama")


def test_a_model_sleeps_when_told_and_wakes_when_asked(tmp_path: Path, llama: Path) -> None:
    with running(tmp_path, {"turbomind": llama}) as server:
        alone = server.ask("turbomind")
        awake = server.control("turbomind", "report")
        assert (awake["state"], awake["level"], awake["waiting"], awake["error"]) == ("awake", 0, 0, "")
        assert awake["bytes"] == awake["awake_bytes"] > 0
        assert awake["idle_seconds"] >= 0
        assert awake["sleeps_in"] is None
        for level in (1, 2):
            asleep = server.control("turbomind", "sleep", sleep_level=level)
            assert (asleep["state"], asleep["level"]) == ("asleep", level)
            assert (0 < asleep["bytes"] < awake["bytes"]) if level == 1 else asleep["bytes"] == 0
            assert server.metric("turbomind_model_awake", "turbomind") == 0
            assert server.state("turbomind") == "asleep"
            answer = server.ask("turbomind")
            assert answer["token_ids"] == alone["token_ids"]
            assert answer["cached_token_len"] == 0
            assert answer["load_seconds"] > 0
            assert server.ask("turbomind")["load_seconds"] == 0
            assert server.control("turbomind", "report")["bytes"] == awake["bytes"]
            assert server.metric("turbomind_model_awake", "turbomind") == 1
        assert server.metric("turbomind_model_wakes_total", "turbomind") == 2


def test_a_sleeping_model_tells_what_is_asked_of_it_and_keeps_sessions(tmp_path: Path, llama: Path) -> None:
    with running(tmp_path, {"turbomind": llama}) as server:
        server.ask("turbomind", session_id=5, sequence_start=True)
        server.control("turbomind", "sleep", sleep_level=2)
        limits = server.post("turbomind", limits=True).json()["text_output"]
        assert json.loads(limits)["session_len"] == ENGINE["session_len"]
        assert server.post("turbomind", lora_control="list").json()["text_output"] == "[]"
        cache = json.loads(server.post("turbomind", cache_control="report").json()["text_output"])
        assert cache["device"]["idle"] == 0
        assert server.state("turbomind") == "asleep"
        assert server.ask("turbomind", [5, 6, 7], session_id=5)["history_token_len"] >= len(PROMPT)
        for inputs, error in (
            ({"sleep_control": "doze"}, "must be report, sleep or wake"),
            ({"sleep_control": "sleep", "sleep_level": 3}, "sleep_level must be 1 or 2"),
            ({"sleep_control": "sleep", "control_key": "guessed"}, "needs the control_key"),
        ):
            rejected = server.post("turbomind", **inputs)
            assert "INVALID_ARGUMENT" in rejected.text
            assert error in rejected.text


def test_a_model_sleeps_when_it_is_idle_for_its_timeout_or_that_of_the_last_request(
    tmp_path: Path, llama: Path
) -> None:
    with running(tmp_path, {"turbomind": llama}, idle_timeout="0.1") as server:
        eventually_sync(lambda: server.state("turbomind") == "asleep")
        server.ask("turbomind", keep_alive=3600)
        assert 3000 < server.control("turbomind", "report")["sleeps_in"] <= 3600
        server.ask("turbomind", keep_alive=-1)
        assert server.control("turbomind", "report")["sleeps_in"] is None
        assert server.control("turbomind", "wake")["state"] == "awake"
        eventually_sync(lambda: server.state("turbomind") == "asleep")
        server.ask("turbomind", keep_alive=-1)
        server.ask("turbomind", keep_alive=0)
        eventually_sync(lambda: server.state("turbomind") == "asleep")
        assert server.control("turbomind", "report")["bytes"] == 0


@pytest.mark.parametrize(
    "make",
    [
        make_tiny_llama,
        lambda path: make_tiny(
            path, "Gemma3ForCausalLM", num_hidden_layers=4, sliding_window=40, head_dim=16,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        ),
        lambda path: make_hybrid(path, "Qwen3.5"),
    ],
    ids=["llama", "windows", "states"],
)  # fmt: skip
def test_a_conversation_continues_from_files_after_its_model_slept(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    engine = {**ENGINE, "cache_max_entry_count": 200, "cache_dir": str(tmp_path / "cache")}
    with running(tmp_path, {"turbomind": make(tmp_path / "model")}, engine) as server:
        first = server.ask("turbomind")
        turn = [*PROMPT, *first["token_ids"], *range(50, 60)]
        kept = server.ask("turbomind", turn)
        for level in (1, 2):
            server.control("turbomind", "sleep", sleep_level=level)
            again = server.ask("turbomind", turn)
            assert again["token_ids"] == kept["token_ids"]
            assert again["cached_token_len"] >= 64


def resting(server: Server, names: list[str], budget: int) -> list[str]:
    """Return the states of models, which together hold no more than `budget`."""
    reports = [server.control(name, "report") for name in names]
    assert sum(report["bytes"] for report in reports) <= budget
    return [report["state"] for report in reports]


def test_three_models_share_memory_that_is_too_small_for_all(tmp_path: Path, llama: Path) -> None:
    models = {
        "turbomind.a": llama,
        "turbomind.b": make_tiny_llama(tmp_path / "b", seed=1),
        "turbomind.c": make_hybrid(tmp_path / "c", "Qwen3.5"),
    }
    names = list(models)
    engine = {**ENGINE, "cache_dir": str(tmp_path / "cache")}
    prompts = [[i + 11 * j % 300 for j in range(70)] for i in range(4)]
    with running(tmp_path, models, engine) as server:
        alone = {(name, i): server.ask(name, prompts[i])["token_ids"] for name in names for i in range(4)}
        sizes = [server.control(name, "report")["bytes"] for name in names]
    budget = max(sizes) + min(sizes) // 2
    shutil.rmtree(tmp_path / "cache")
    order = random.Random(1).sample([(name, i) for name in names for i in range(4)] * 4, 48)
    with running(tmp_path, models, engine, models_memory=str(budget)) as server:
        assert "asleep" in resting(server, names, budget)  # which one depends on the order in which Triton loads them
        with ThreadPoolExecutor(4) as pool:
            for (name, i), answer in zip(
                order, pool.map(lambda one: server.ask(one[0], prompts[one[1]]), order), strict=True
            ):
                assert answer["token_ids"] == alone[name, i]
        assert "asleep" in resting(server, names, budget)
    with running(tmp_path, {"turbomind": llama}, engine, models_memory=str(sizes[0] // 2)) as server:
        rejected = server.post("turbomind", input_ids=PROMPT, max_new_tokens=4)
        assert "UNAVAILABLE" in rejected.text
        assert "all models may take" in rejected.text
        assert "raise models_memory" in server.control("turbomind", "report")["error"]


def test_requests_wait_in_order_for_a_model_whose_memory_another_needs(tmp_path: Path, llama: Path) -> None:
    names = ["turbomind.a", "turbomind.b"]
    engine = {**ENGINE, "session_len": 8192, "cache_max_entry_count": 600}
    other = make_tiny_llama(tmp_path / "b", seed=1, max_position_embeddings=8192)
    models = dict(zip(names, [make_tiny_llama(tmp_path / "a", max_position_embeddings=8192), other], strict=True))
    with running(tmp_path, models, engine) as server:
        alone = server.ask(names[1])["token_ids"]
        budget = int(1.5 * server.control(names[0], "report")["bytes"])
    with running(tmp_path, models, engine, models_memory=str(budget)) as server, ThreadPoolExecutor(8) as pool:

        def send(model: str, name: str, **inputs: Any) -> Future[httpx.Response]:
            return pool.submit(
                server.post, model, id=name, input_ids=PROMPT, ignore_eos=True, **{"max_new_tokens": 8, **inputs}
            )

        def wait_for(count: int) -> None:
            eventually_sync(lambda: server.control(names[1], "report")["waiting"] == count)

        runs = send(names[0], "runs", max_new_tokens=8000)
        eventually_sync(lambda: server.control(names[0], "report")["idle_seconds"] is None)
        first = send(names[1], "first")
        wait_for(1)
        stopped = send(names[1], "stopped")
        wait_for(2)
        overdue = send(names[1], "overdue", timeout_ms=1)
        assert "did not finish in the time" in overdue.result().text
        assert server.post(names[1], STOP=1, stop_request_id="stopped").status_code == 200
        assert stopped.result().json()["finish_reason"] == "cancelled"
        wait_for(1)
        assert server.metric("turbomind_model_waiting_requests", names[1]) == 1
        behind = send(names[0], "behind")  # its model answers, but the memory is promised
        eventually_sync(lambda: server.control(names[0], "report")["waiting"] == 1)
        assert not first.done()
        server.post(names[0], STOP=1, stop_request_id="runs")
        assert runs.result().json()["finish_reason"] == "cancelled"
        assert first.result().json()["token_ids"] == alone
        assert first.result().json()["load_seconds"] > 0
        assert behind.result().status_code == 200
        assert server.state(names[0]) == "awake"


def test_a_model_whose_folder_vanished_is_an_error_until_it_is_back(tmp_path: Path, llama: Path) -> None:
    lost = make_tiny_llama(tmp_path / "lost", seed=1)
    with running(tmp_path, {"turbomind.a": llama, "turbomind.b": lost}) as server:
        alone = server.ask("turbomind.b")["token_ids"]
        server.control("turbomind.b", "sleep", sleep_level=2)
        away = lost.rename(tmp_path / "away")
        for _ in range(2):
            rejected = server.post("turbomind.b", input_ids=PROMPT)
            assert "UNAVAILABLE" in rejected.text
            assert str(lost) in rejected.text
        report = server.control("turbomind.b", "report")
        assert (report["state"], report["waiting"]) == ("asleep", 0)
        assert str(lost) in report["error"]
        server.ask("turbomind.a")
        away.rename(lost)
        assert server.ask("turbomind.b")["token_ids"] == alone
        assert server.control("turbomind.b", "report")["error"] == ""
