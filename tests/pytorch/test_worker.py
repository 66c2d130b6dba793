"""The process that runs a model: what callers see of its end, and what comes back."""

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy.pytorch.worker import StepProfiler
from lmdeploy.turbomind.engine import Engine, EngineOutput, EngineUnavailable
from tests.support.processes import children, command_line
from tests.support.tiny_models import make_tiny_llama
from tests.support.token_engine import TokenEngine
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.usefixtures("installed_workers")
PROMPT = list(range(100, 140))
RESTART = 180.0  # seconds; Python and PyTorch are loaded again
TIMEOUT = 180.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Engine]:
    config = PytorchEngineConfig(
        dtype="float32", block_size=16, num_gpu_blocks=300, session_len=4096, worker_step_seconds=2,
        enable_prefix_caching=True,
    )  # fmt: skip
    engine = Engine(str(directory), config)
    yield engine
    engine.close()


class Answer:
    """A request's response, as it comes; it may be cancelled after some tokens."""

    def __init__(
        self, engine: Engine, tokens: int, *, prompt: list[int] = PROMPT, cancel_after: int = 0, **sampling: Any
    ) -> None:
        self.tokens: list[int] = []
        self.started, self.ended = threading.Event(), threading.Event()
        self.error, self.reason = "", ""
        self._engine, self._cancel_after, self._is_submitted = engine, cancel_after, threading.Event()
        config = GenerationConfig(max_new_tokens=tokens, ignore_eos=True, **sampling)
        self._number = engine.submit(prompt, config, self._take)
        self._is_submitted.set()

    def _take(self, output: EngineOutput) -> None:
        self.tokens += output.token_ids
        self.started.set()
        if 0 < self._cancel_after <= len(self.tokens):
            self._is_submitted.wait(TIMEOUT)
            self._engine.cancel(self._number)
        if output.is_final:
            self.error, self.reason = output.error, output.finish_reason or ""
            self.ended.set()

    def wait(self) -> "Answer":
        assert self.ended.wait(TIMEOUT), "no response"
        return self


def workers() -> set[int]:
    """Return the processes that run models."""
    return {pid for pid in children(os.getpid()) if "lmdeploy.pytorch.worker" in command_line(pid)}


def worker() -> int:
    """Return the process that runs the model."""
    (found,) = workers()
    return found


def takes_requests(engine: Engine) -> bool:
    try:
        return not Answer(engine, 1).wait().error
    except EngineUnavailable:
        return False


def test_its_responses_are_the_turbomind_engines(engine: Engine, directory: Path) -> None:
    with TokenEngine(directory) as native:
        tokens, _ = native.generate(PROMPT, 20)
    assert Answer(engine, 20).wait().tokens == tokens


@pytest.mark.alike(max_cases=1)  # tests/e2e/test_pytorch_engine.py kills one
@pytest.mark.parametrize(
    ("sign", "reason"),
    [(signal.SIGSTOP, "did not finish a step in 2 s"), (signal.SIGKILL, "the worker was killed by signal 9")],
)
def test_one_that_dies_or_hangs_ends_open_requests_with_the_reason_and_comes_back(
    engine: Engine, sign: signal.Signals, reason: str
) -> None:
    before = Answer(engine, 20).wait().tokens
    lost = Answer(engine, 4000)
    assert lost.started.wait(TIMEOUT)
    os.kill(worker(), sign)
    assert reason in lost.wait().error
    eventually_sync(lambda: takes_requests(engine), timeout=RESTART)
    assert Answer(engine, 20).wait().tokens == before  # nothing of the lost cache is used


def test_one_that_dies_while_nothing_runs_is_started_again_before_anybody_asks(engine: Engine) -> None:
    first = worker()
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        return any(pid != first and "pytorch.worker" in command_line(pid) for pid in children(os.getpid()))

    eventually_sync(is_back, timeout=RESTART)
    eventually_sync(lambda: takes_requests(engine), timeout=RESTART)


def test_it_ends_with_an_engine_that_is_killed(directory: Path) -> None:
    script = (
        "import sys, time\n"
        "from lmdeploy import PytorchEngineConfig\n"
        "from lmdeploy.turbomind.engine import Engine\n"
        "engine = Engine(sys.argv[1], PytorchEngineConfig(session_len=64, num_gpu_blocks=16))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        started = [pid for pid in children(parent.pid) if "pytorch.worker" in command_line(pid)]
        assert len(started) == 1
        parent.kill()
        eventually_sync(lambda: not command_line(started[0]))
    finally:
        parent.kill()
        parent.wait()


def test_a_model_that_cannot_be_loaded_is_refused_with_the_workers_reason(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    (directory / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="header"):
        Engine(str(directory), PytorchEngineConfig(session_len=64, num_gpu_blocks=16))


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize(("tokens", "steps"), [(60, 40), (12, 12)], ids=["many steps", "until nothing is to be done"])
def test_a_signal_has_steps_recorded(
    tokens: int, steps: int, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = tmp_path / "traces"
    monkeypatch.setenv("LMDEPLOY_TORCH_PROFILER_DIR", str(traces))
    config = PytorchEngineConfig(dtype="float32", block_size=16, num_gpu_blocks=40, session_len=200)
    others = workers()
    engine = Engine(str(directory), config)
    try:
        (pid,) = workers() - others
        os.kill(pid, signal.SIGUSR1)
        Answer(engine, tokens).wait()
        eventually_sync(lambda: any(traces.glob("rank0-*.gz")), timeout=TIMEOUT)
    finally:
        engine.close()
    names = [
        event.get("name")
        for event in json.loads(gzip.decompress(next(traces.glob("rank0-*.gz")).read_bytes()))["traceEvents"]
    ]
    assert names.count("aten::to") >= steps, "operators of each step"
    lines = (traces / "rank0.log").read_text().splitlines()
    assert [line.split(": ", 2)[2].split(" in ")[0] for line in lines[:2]] == [
        "the next steps are recorded", "recording has begun,"
    ]  # fmt: skip
    assert f"rank0-0.trace.json.gz has {steps} steps of " in lines[2]


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("call", ["start", "stop", "export_chrome_trace"])
def test_steps_go_on_where_the_profiler_fails(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUPTI is not to be had")

    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setenv("LMDEPLOY_TORCH_PROFILER_DIR", str(tmp_path))
    monkeypatch.setattr(torch.profiler.profile, call, fail)
    profiler = StepProfiler(0)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        profiler.begin_step()
        profiler.end_step()
        profiler.end()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert profiler.timeout > 60, "nothing is being recorded"
    assert not list(tmp_path.glob("rank0-*"))
    assert "RuntimeError: CUPTI is not to be had" in capfd.readouterr().err
    assert "RuntimeError: CUPTI is not to be had" in (tmp_path / "rank0.log").read_text(encoding="utf-8")
