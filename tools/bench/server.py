"""Server process of a benchmark: `lmdeploy serve api_server` on free ports, or another engine's."""

import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lmdeploy.serve.api import command_of
from lmdeploy.serve.ports import free_ports
from lmdeploy.turbomind.engine_settings import EngineConfig

START_SECONDS = 120
STOP_SECONDS = 20


@contextmanager
def running_server(model_path: str, config: EngineConfig) -> Iterator[str]:
    """Run Triton and the gateway for as long as the block lasts.

    Raises `RuntimeError` if it did not start; the message ends with what it printed. Yields URL of the gateway, without
    ``/v1``.
    """
    command, environment = command_of("api_server", model_path, None, config, None)
    (port,) = free_ports(1)
    command += ["--server-name", "127.0.0.1", "--server-port", str(port)]
    with running(command, f"http://127.0.0.1:{port}", environment) as url:
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
