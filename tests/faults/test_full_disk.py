"""A disk that is full: logs cost their lines, a conversion its result, and neither a service."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmdeploy.serve.ports import free_ports
from tests.faults.callers import complete, expect_no_leaks
from tests.support.commands import api_server
from tests.support.tiny_models import WHOLE_VOCABULARY, make_tiny_llama

SMALL = 64 * 1024  # bytes: less than any engine directory needs


def with_small_files() -> None:
    """Let no file grow beyond `SMALL`, as a quota does: RLIMIT_FSIZE; a write beyond it fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, SMALL))


@pytest.mark.e2e
def test_a_server_whose_log_cannot_be_written_serves_on_and_says_so_once(model: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (port,) = free_ports(1)
    (logs / f"tritonserver-{port}.log").symlink_to("/dev/full")  # every write to it: no space left on device
    cache = {"LMDEPLOY_CACHE": str(tmp_path)}
    with api_server(str(model), "--cache-max-entry-count", "64", env=cache, triton_grpc_port=port) as server:
        server.wait_ready()
        assert complete(server).status_code == 200
        expect_no_leaks(server)
        assert server.end(signal.SIGTERM) == 143, server.output
    assert server.output.count("cannot be written: [Errno 28]") == 1
    assert "Traceback" not in server.output


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("command", ["convert", "serve"])
def test_a_conversion_without_space_is_an_error_of_one_line_and_leaves_nothing(
    default_model_dir: Path, tmp_path: Path, command: str
) -> None:
    checkpoint = make_tiny_llama(tmp_path / "tiny", vocab_size=WHOLE_VOCABULARY)
    cache = tmp_path / "cache"
    cache.mkdir()
    words = {
        "convert": ["convert", str(checkpoint), "--dst-path", str(cache / "workspace")],
        "serve": ["serve", "api_server", str(checkpoint), "--server-port", str(free_ports(1)[0])],
    }
    lmdeploy = [sys.executable, "-m", "lmdeploy", *words[command]]
    env = {**os.environ, "LMDEPLOY_CACHE": str(cache)}
    done = subprocess.run(lmdeploy, env=env, preexec_fn=with_small_files, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path for path in cache.rglob("*") if path.is_file()] == []
