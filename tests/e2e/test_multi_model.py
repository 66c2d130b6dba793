"""Several models on one real tritonserver: each answers as alone, they come and go, and their memory goes with them."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.serve.multi_model.prepare import prepare
from lmdeploy.serve.multi_model.requested import RequestedModel
from lmdeploy.serve.restrictions import GRPC_KEY_HEADER, REPOSITORY_KEY, new_key
from tests.support.commands import ApiServer, api_server
from tests.support.hybrid_models import make_hybrid
from tests.support.processes import children, command_line, memory
from tests.support.tiny_encoders import make_encoder, write_modules
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync

PROMPT = "Once upon a time, in a land far away, there lived"
ADMIN = {"Authorization": "Bearer boss"}
KEPT = 38  # MiB that a model which came and went may leave behind (docs/guides/multi-model.md)
OF_TRIO: dict[str, Any] = {"cache_max_entry_count": 128, "cache_block_seq_len": 16, "max_batch_size": 4}
_SECONDS = 180.0  # for whatever is waited for on a busy machine


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {
        "small": make_tiny_llama(base / "small", seed=1),
        "deep": make_tiny_llama(base / "deep", seed=2, num_hidden_layers=3),
        "wide": make_tiny_llama(base / "wide", seed=3, hidden_size=512, intermediate_size=1024, vocab_size=49152),
    }


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, str]:
    """Offline responses of each model."""
    greedy = GenerationConfig(max_new_tokens=8, ignore_eos=True)
    texts = {}
    for name, folder in folders.items():
        with pipeline(str(folder), TurbomindEngineConfig(cache_max_entry_count=16)) as pipe:
            texts[name] = pipe(PROMPT, greedy, do_preprocess=False).text
    assert len(set(texts.values())) == len(folders)
    return texts


@pytest.fixture(scope="module")
def models_file(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = [
        {"path": str(folders["small"]), "engine": {"cache_max_entry_count": 64}},
        {"name": "chat@1", "path": str(folders["deep"]), "engine": {"cache_max_entry_count": 0.01}},
    ]
    file = tmp_path_factory.mktemp("file") / "models.json"
    file.write_text(json.dumps({"models": models}))
    return file


@pytest.fixture(scope="module")
def server(models_file: Path) -> Iterator[ApiServer]:
    settings = {"models-file": str(models_file), "admin-keys": "boss", "drain-seconds": "1", "log-level": "WARNING"}
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    with api_server(*options) as running:
        running.wait_ready()
        triton = running.triton_pid()  # whose engines start a process for formats two seconds later
        eventually_sync(lambda: sum("lmdeploy.grammars" in command_line(pid) for pid in children(triton)) == 2)
        yield running
        running.end(signal.SIGINT)


@pytest.fixture(scope="module")
def http(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=_SECONDS, trust_env=False) as client:
        yield client


def body(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True} | more


def text(http: httpx.Client, model: str) -> str:
    response = http.post("/v1/completions", json=body(model))
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def answers(http: httpx.Client, model: str, expected: str) -> bool:
    """Return whether there is such a model, and what it generates."""
    response = http.post("/v1/completions", json=body(model))
    return response.is_success and response.json()["choices"][0]["text"] == expected


def streamed_text(http: httpx.Client, model: str) -> str:
    with http.stream("POST", "/v1/completions", json=body(model, stream=True)) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    assert len(events) > 1
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def load(http: httpx.Client, name: str, folder: Path, **engine: Any) -> httpx.Response:
    requested = {"model_name": name, "model_path": str(folder), "engine": {"cache_max_entry_count": 64} | engine}
    return http.post("/v1/load_model", json=requested, headers=ADMIN)


def unload(http: httpx.Client, name: str) -> httpx.Response:
    return http.post("/v1/unload_model", json={"model_name": name}, headers=ADMIN)


def names(http: httpx.Client) -> list[str]:
    return [card["id"] for card in http.get("/v1/models").json()["data"]]


@pytest.fixture(scope="module")
def cut_off(http: httpx.Client, folders: dict[str, Path]) -> str:
    """Return the last lines of a response whose model was unloaded meanwhile."""
    loaded = load(http, "wide", folders["wide"], session_len=32768, cache_max_entry_count=600)
    assert loaded.status_code == 200, loaded.text
    lines: list[str] = []
    has_begun = threading.Event()

    def read() -> None:
        with http.stream("POST", "/v1/completions", json=body("wide", max_tokens=30000, stream=True)) as response:
            for line in response.iter_lines():
                lines.append(line)
                has_begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert has_begun.wait(_SECONDS)
    assert unload(http, "wide").status_code == 200
    reader.join(_SECONDS)
    assert not reader.is_alive()
    return "".join(lines[-4:])


def test_each_model_answers_as_it_does_alone(http: httpx.Client, expected: dict[str, str]) -> None:
    assert names(http) == ["small", "chat@1", "chat"]
    for model, folder in (("small", "small"), ("chat@1", "deep"), ("chat", "deep")):
        assert text(http, model) == expected[folder]
        assert streamed_text(http, model) == expected[folder]
    unknown = http.post("/v1/completions", json=body("wide"))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.usefixtures("cut_off")  # once before: what stays of a first time is no leak
def test_a_model_that_was_unloaded_has_given_its_memory_back(
    server: ApiServer, http: httpx.Client, folders: dict[str, Path], expected: dict[str, str], *, all_cases: bool
) -> None:
    triton = server.triton_pid()
    processes = 2 * 4  # the Python models of two, and what reads formats
    eventually_sync(lambda: len(children(triton)) == processes, timeout=_SECONDS)
    before = memory(triton)
    for _ in range(2 if all_cases else 1):
        loaded = load(http, "wide", folders["wide"])
        assert loaded.status_code == 200, loaded.text
        assert text(http, "wide") == expected["wide"]
        assert memory(triton) > before + 2 * KEPT
        assert len(children(triton)) > processes  # its Python models
        gone = unload(http, "wide")
        assert gone.status_code == 200, gone.text
        eventually_sync(lambda: memory(triton) < before + KEPT, timeout=_SECONDS)
        eventually_sync(lambda: len(children(triton)) == processes, timeout=_SECONDS)
        assert http.post("/v1/completions", json=body("wide")).status_code == 404
        assert text(http, "small") == expected["small"]
    assert server.triton_pid() == triton


def test_a_higher_version_takes_over_the_bare_name(
    http: httpx.Client, folders: dict[str, Path], expected: dict[str, str]
) -> None:
    assert load(http, "chat@2", folders["small"]).status_code == 200
    assert (text(http, "chat"), text(http, "chat@1")) == (expected["small"], expected["deep"])
    assert unload(http, "chat@2").status_code == 200
    assert text(http, "chat") == expected["deep"]


def test_what_cannot_be_loaded_is_refused_with_the_reason_and_disturbs_nobody(
    server: ApiServer, http: httpx.Client, folders: dict[str, Path], expected: dict[str, str], tmp_path: Path
) -> None:
    triton = server.triton_pid()
    before = len(children(triton))
    rejections = {
        "no model": (load(http, "broken", tmp_path), "config.json is missing"),
        "refused by the engine": (
            load(http, "broken", folders["small"], model_format="awq"),
            "model_format is awq, but the checkpoint's weights are hf",
        ),
        "too large": (load(http, "broken", folders["small"], cache_max_entry_count=10**8), "does not fit into the"),
    }
    for response, reason in rejections.values():
        assert response.status_code == 400, (response.text, server.output)
        assert reason in response.json()["error"]["message"]
    assert names(http) == ["small", "chat@1", "chat"]
    assert text(http, "small") == expected["small"]
    assert (server.triton_pid(), http.get("/health").status_code) == (triton, 200)
    eventually_sync(lambda: len(children(triton)) == before, timeout=_SECONDS)
    assert load(http, "broken", folders["deep"]).status_code == 200  # the name is free
    assert text(http, "broken") == expected["deep"]
    assert unload(http, "broken").status_code == 200


def test_a_response_that_outlasts_its_model_ends_with_the_reason(
    http: httpx.Client, cut_off: str, expected: dict[str, str]
) -> None:
    assert "the model was unloaded before the response had ended" in cut_off
    assert text(http, "small") == expected["small"]


def test_a_file_that_changed_is_read_again_and_one_that_is_wrong_changes_nothing(
    server: ApiServer, http: httpx.Client, models_file: Path, folders: dict[str, Path], expected: dict[str, str]
) -> None:
    before, served = models_file.read_text(), names(http)
    entry = {"name": "late", "engine": {"cache_max_entry_count": 64}}
    for folder in ("small", "deep"):  # a new model; another path of it
        models = [*json.loads(before)["models"], entry | {"path": str(folders[folder])}]
        models_file.write_text(json.dumps({"models": models}))
        server.process.send_signal(signal.SIGHUP)
        eventually_sync(partial(answers, http, "late", expected[folder]), timeout=_SECONDS)
    models_file.write_text("{")
    server.process.send_signal(signal.SIGHUP)
    eventually_sync(lambda: "the models stay as they are" in server.output, timeout=_SECONDS)
    assert names(http) == [*served[:-1], "late", served[-1]]
    models_file.write_text(before)
    server.process.send_signal(signal.SIGHUP)
    eventually_sync(lambda: unload(http, "late").status_code == 404, timeout=_SECONDS)  # not 409: it is done
    assert names(http) == served


def test_the_model_repository_is_closed_to_whoever_lacks_the_secret(server: ApiServer, http: httpx.Client) -> None:
    with grpc.insecure_channel(server.triton_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="restricted"):
            stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), metadata=((GRPC_KEY_HEADER, new_key()),))
    # Over HTTP no key opens it, not even the one that does over gRPC.
    environment = Path(f"/proc/{server.triton_pid()}/environ").read_text().split("\0")
    (key,) = [word.partition("=")[2] for word in environment if word.startswith(f"{REPOSITORY_KEY}=")]
    url = f"http://127.0.0.1:{server.triton_http_port}/v2/repository"
    for path in ("index", "models/turbomind.small/unload"):
        for headers in ({}, {"lmdeploy-admin": key}, {GRPC_KEY_HEADER: key}):
            assert httpx.post(f"{url}/{path}", json={}, headers=headers, trust_env=False).status_code == 403
    assert len(names(http)) == 3


def test_a_server_that_died_comes_back_with_the_models_it_had(
    server: ApiServer, http: httpx.Client, folders: dict[str, Path], expected: dict[str, str]
) -> None:
    assert load(http, "wide", folders["wide"]).status_code == 200
    assert unload(http, "chat@1").status_code == 200
    triton = server.triton_pid()
    os.kill(triton, signal.SIGKILL)

    def is_back() -> bool:
        pids = server.pids("bin/tritonserver")
        if not pids or pids == [triton]:
            return False
        return http.post("/v1/completions", json=body("wide")).status_code == 200

    eventually_sync(is_back, timeout=_SECONDS)
    assert (text(http, "wide"), text(http, "small")) == (expected["wide"], expected["small"])
    assert names(http) == ["small", "wide"]


@dataclass(frozen=True)
class Turn:
    """A request, and the response of its model when it is served alone."""

    model: str
    prompt: str
    expected: str | list[float]

    def send(self, http: httpx.Client) -> None:
        """Send the request; check the response, and the memory that all models then have."""
        if isinstance(self.expected, list):
            response = http.post("/v1/embeddings", json={"model": self.model, "input": self.prompt})
            assert response.status_code == 200, response.text
            assert response.json()["data"][0]["embedding"] == pytest.approx(self.expected, abs=1e-6)
        else:
            response = http.post("/v1/completions", json=body(self.model, prompt=self.prompt))
            assert response.status_code == 200, response.text
            assert response.json()["choices"][0]["text"] == self.expected


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Chat, code and embedding models, the first two of about one size."""
    base = tmp_path_factory.mktemp("trio")
    make_encoder(base / "embed", "Bert")
    write_modules(base / "embed", "mean_tokens", "Normalize")
    return {
        "chat": make_tiny_llama(base / "chat", seed=5),
        "code": make_hybrid(base / "code", "Qwen3.5"),
        "embed": base / "embed",
    }


def turns_of(model: str, folder: Path) -> list[Turn]:
    """Return four conversations of three turns each with one model, or what it makes of six texts."""
    turns: list[Turn] = []
    with pipeline(str(folder), TurbomindEngineConfig(**OF_TRIO)) as pipe:
        if model == "embed":
            texts = [f"{PROMPT} {number} dogs" for number in range(6)]
            return [Turn(model, text, vector.tolist()) for text, vector in zip(texts, pipe.embed(texts), strict=True)]
        for number in range(4):
            prompt = f"{PROMPT} {number} dogs"
            for _ in range(3):
                text = pipe(prompt, GenerationConfig(max_new_tokens=8, ignore_eos=True), do_preprocess=False).text
                turns.append(Turn(model, prompt, text))
                prompt += f"{text} and then"
    return turns


def test_three_models_answer_from_the_memory_of_one_and_a_half(trio: dict[str, Path], tmp_path: Path) -> None:
    turns = [turn for model, folder in trio.items() for turn in turns_of(model, folder)]
    chance = random.Random(62)
    chance.shuffle(turns)
    needs = [prepare(RequestedModel(name, str(folder), engine=OF_TRIO)) for name, folder in trio.items()]
    taken = {need.name: need.weights + OF_TRIO["cache_max_entry_count"] * need.block for need in needs}
    budget = int(1.5 * max(taken.values()))
    assert sum(taken.values()) > budget
    settings = OF_TRIO | {"cache_dir": tmp_path / "kv", "models_memory": budget, "admin_keys": "boss"}
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    models: list[dict[str, Any]] = [{"name": name, "path": str(folder)} for name, folder in trio.items()]
    models.append(models[0] | {"name": "broken", "engine": {"model_format": "awq"}})
    (tmp_path / "models.json").write_text(json.dumps(models))
    with api_server("--models-file", str(tmp_path / "models.json"), *options) as server:
        server.wait_ready()
        assert "warning: model broken could not be loaded" in server.output
        with httpx.Client(base_url=server.url, timeout=_SECONDS, trust_env=False) as http:
            watched = threading.Event()
            peak_bytes: list[int] = []

            def watch() -> None:
                while not watched.wait(0.02):
                    peak_bytes.append(http.get("/v1/models").json()["memory_bytes"] or 0)

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                with ThreadPoolExecutor(3) as clients:
                    list(clients.map(lambda turn: turn.send(http), turns))
            finally:
                watched.set()
                watcher.join()
            assert 0 < max(peak_bytes) <= budget
            *others, broken = http.get("/v1/models").json()["data"]
            assert [card["load_error"] for card in others] == [None] * 3
            assert "model_format is awq, but the checkpoint's weights are hf" in broken["load_error"]
            assert http.post("/v1/completions", json=body("broken")).status_code == 503
            assert unload(http, "broken").status_code == 200
            for keep_alive in (0, "1h"):
                assert http.post("/api/generate", json={"model": "embed", "keep_alive": keep_alive}).status_code == 200
            embed = http.get("/v1/models/embed").json()
            assert (embed["state"], 3000 < embed["sleeps_in"] <= 3600) == ("awake", True)
            lines = http.get("/metrics").text.splitlines()
            assert sum(float(line.split()[-1]) for line in lines if line.startswith("turbomind_model_wakes_total{")) > 3
