"""Server process of a benchmark: `lmdeploy serve api_server` on free ports, or another engine's."""

import dataclasses
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lmdeploy.messages import PytorchEngineConfig
from lmdeploy.serve.ports import free_ports
from lmdeploy.turbomind.engine_settings import EngineConfig

START_SECONDS = 120
STOP_SECONDS = 20


def engine_flags(config: EngineConfig) -> list[str]:
    """Return the flags of `lmdeploy serve` for the engine, and for the fields that have not their default."""
    given, defaults = dataclasses.asdict(config), dataclasses.asdict(type(config)())
    changed = {name: value for name, value in given.items() if value != defaults[name]}
    backend = ["--backend", "pytorch"] if isinstance(config, PytorchEngineConfig) else []
    return backend + [text for name, value in changed.items() for text in _flag(name.replace("_", "-"), value)]


def _flag(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


@contextmanager
def running_server(model_path: str, config: EngineConfig) -> Iterator[str]:
    """Run Triton and the gateway for as long as the block lasts.

    Raises `RuntimeError` if it did not start; the message ends with what it printed. Yields URL of the gateway, without
    ``/v1``.
    """
    with running_lmdeploy(model_path, *engine_flags(config)) as url:
        yield url


@contextmanager
def running_lmdeploy(*arguments: str) -> Iterator[str]:
    """Run `lmdeploy serve api_server` with these arguments on free ports, as `running_server` does."""
    port, http_port, grpc_port, metrics_port = free_ports(4)
    command = [
        *(sys.executable, "-m", "lmdeploy", "serve", "api_server", *arguments),
        *("--server-name", "127.0.0.1", "--server-port", str(port), "--triton-http-port", str(http_port)),
        *("--triton-grpc-port", str(grpc_port), "--triton-metrics-port", str(metrics_port)),
    ]
    with running(command, f"http://127.0.0.1:{port}") as url:
        yield url


@contextmanager
def running(
    command: Sequence[str],  # starts it; it ends itself when interrupted
    url: str,  # where it will answer ``/health`` with 200 once it is ready
    environment: Mapping[str, str] | None = None,  # of the server; None: this process's
    start_seconds: float = START_SECONDS,  # most that it may take until then
) -> Iterator[str]:
    """Run an HTTP server of any kind for as long as the block lasts.

    Raises `RuntimeError` if it did not start; the message ends with what it printed. Yields the URL.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            if not _becomes_healthy(url, process, start_seconds):
                log.seek(0)
                raise RuntimeError(f"the server did not start:\n{log.read().decode(errors='replace')[-3000:]}")
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _becomes_healthy(url: str, process: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
                if response.status == 200:
                    return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    return False
