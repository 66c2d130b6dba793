"""The line that ``lmdeploy convert`` prints serves the model, from a shell with nothing set."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from lmdeploy.serve.ports import DEFAULT_TRITON_HOST, Ports
from tests.support.processes import session_members
from tests.support.servers import START
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync


@contextmanager
def shell_with_nothing_set(line: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as log:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", line], env={}, cwd="/", stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield shell
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_the_printed_line_serves_the_model_from_a_shell_with_nothing_set(tmp_path: Path) -> None:
    model, workspace, log = make_tiny_llama(tmp_path / "tiny llama"), tmp_path / "workspace", tmp_path / "log"
    command = [sys.executable, "-m", "lmdeploy", "convert", str(model), "--dst-path", str(workspace)]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    ports = Ports.free()  # the line leaves Triton its own ports, which another server may have
    line += f" --http-port={ports.http} --grpc-port={ports.grpc} --metrics-port={ports.metrics}"
    url = f"http://{DEFAULT_TRITON_HOST}:{ports.http}/v2"

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    with shell_with_nothing_set(line, log) as shell:
        eventually_sync(lambda: is_ready() or shell.poll() is not None, timeout=START)
        assert shell.poll() is None, log.read_text()
        request = {"messages": '[{"role": "user", "content": "Hi"}]', "max_new_tokens": 4, "ignore_eos": True}
        response = httpx.post(f"{url}/models/ensemble/generate", json=request, trust_env=False)
        assert response.status_code == 200, response.text
        assert response.json()["generate_token_len"] == 4
        assert httpx.get(f"{url}/logging", trust_env=False).status_code == 403  # closed, as with `lmdeploy serve`
        for port in (ports.http, ports.grpc, ports.metrics):
            with pytest.raises(ConnectionRefusedError):  # another address of this machine's than the line listens on
                socket.create_connection(("127.0.0.2", port), timeout=5)
        os.killpg(shell.pid, signal.SIGTERM)
        eventually_sync(lambda: shell.poll() is not None and not session_members(shell.pid))
