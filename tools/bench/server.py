"""A server of our own for a benchmark: `lmdeploy serve api_server` on free ports."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lmdeploy.messages import TurbomindEngineConfig

START_SECONDS = 120
STOP_SECONDS = 20


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running_server(model_path: str, config: TurbomindEngineConfig) -> Iterator[str]:
    """Run Triton and the gateway for as long as the block lasts.

    Parameters
    ----------
    model_path
        The model to serve.
    config
        How the engine runs.

    Yields
    ------
    str
        URL of the gateway, without ``/v1``.

    Raises
    ------
    RuntimeError
        It did not start; the message ends with what it printed.
    """
    port, http_port, grpc_port, metrics_port = free_ports(4)
    command = [
        *(sys.executable, "-m", "lmdeploy.cli.main", "serve", "api_server", model_path),
        *("--server-name", "127.0.0.1", "--server-port", str(port), "--http-port", str(http_port)),
        *("--grpc-port", str(grpc_port), "--metrics-port", str(metrics_port)),
    ]
    defaults = TurbomindEngineConfig()
    changed = {k: v for k, v in dataclasses.asdict(config).items() if v != getattr(defaults, k)}
    environment = {**os.environ, "LMDEPLOY_ENGINE_CONFIG": json.dumps(changed)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            if not _becomes_healthy(url, process):
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


def _becomes_healthy(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
                if response.status == 200:
                    return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    return False
