"""Models that sleep give their memory back and lose nothing: at the inputs of Triton's model ``turbomind``."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmdeploy.serve.ports import Ports
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.repository import set_parameter, template_dir
from tests.support.servers import START
from tests.support.tiny_models import make_tiny_llama

pytestmark = pytest.mark.e2e

ENGINE = {"dtype": "float32", "cache_max_entry_count": 64, "cache_block_seq_len": 16, "session_len": 512}
PROMPT = [7 + i % 300 for i in range(100)]


class Server:
    """A tritonserver of engines alone."""

    def __init__(self, triton: TritonServer) -> None:
        self.triton = triton
        self._http = httpx.Client(base_url=f"http://{triton.http_address}/v2/models", timeout=START, trust_env=False)

    def post(self, model: str, **inputs: Any) -> httpx.Response:
        return self._http.post(f"/{model}/generate", json={"control_key": self.triton.control_key, **inputs})

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
