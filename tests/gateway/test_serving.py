"""The gateway as a process: TLS, several workers, and stopping without dropping anybody."""

import os
import shutil
import signal
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmdeploy.serve.ports import free_ports
from openai_gateway.process.tls import TlsError, tls_files
from tests.gateway.conftest import MODEL
from tests.support.commands import Command
from tests.support.fake_triton import FakeTriton, Script
from tests.support.metrics import metrics_of
from tests.support.processes import children, command_line
from tests.support.waiting import eventually_sync

_CONFIG = """
[ca]
default_ca = mine
[mine]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = DNS:localhost,IP:127.0.0.1
"""


def make_certificate(folder: Path, *, until: str = "20491231000000Z") -> dict[str, str]:
    """Make a self-signed certificate for this machine; return the environment that names its files."""
    folder.mkdir(parents=True)
    (folder / "index.txt").touch()
    (folder / "ca.conf").write_text(_CONFIG.format(folder=folder))
    key, request, certificate = folder / "key.pem", folder / "request.pem", folder / "certificate.pem"
    _openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=localhost")
    dates = ("-startdate", "20200101000000Z", "-enddate", until)
    signing = ("-config", folder / "ca.conf", "-in", request, "-keyfile", key, "-out", certificate)
    _openssl("ca", "-selfsign", "-batch", "-notext", *signing, *dates)
    return {"SSL_KEYFILE": str(key), "SSL_CERTFILE": str(certificate)}


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


BODY: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is missing")


def gateway(fake: FakeTriton, port: int, *flags: str, env: dict[str, str] | None = None) -> Command:
    where = ["--triton-address", fake.address, "--server-name", "127.0.0.1", "--server-port", str(port)]
    return Command("serve", "gateway", *where, *flags, env=env)


@needs_openssl
def test_https_with_the_files_named_in_the_environment(fake: FakeTriton, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    files = make_certificate(tmp_path / "tls")
    trust = ssl.create_default_context(cafile=files["SSL_CERTFILE"])
    with gateway(fake, port, "--ssl", env=files) as command:
        command.wait_for(f"https://127.0.0.1:{port}/v1")
        assert httpx.get(f"https://127.0.0.1:{port}/health", verify=trust, trust_env=False).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)


@needs_openssl
def test_unusable_tls_files_are_named_before_anything_listens(fake: FakeTriton, tmp_path: Path) -> None:
    good, other = make_certificate(tmp_path / "good"), make_certificate(tmp_path / "other")
    expired = make_certificate(tmp_path / "expired", until="20210101000000Z")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    assert tls_files(good).key == Path(good["SSL_KEYFILE"])
    for files, message in (
        ({}, "SSL_KEYFILE"),
        ({**good, "SSL_CERTFILE": str(tmp_path / "none.pem")}, "must name a file"),
        ({**good, "SSL_CERTFILE": str(text)}, "no certificate and its key"),
        ({**good, "SSL_KEYFILE": other["SSL_KEYFILE"]}, "no certificate and its key"),
        (expired, "expired"),
    ):
        with pytest.raises(TlsError, match=message):
            tls_files(files)
    (port,) = free_ports(1)
    with gateway(fake, port, "--ssl", env=expired) as command:
        assert command.process.wait(180) == 1
    assert "certificate has expired" in command.output


def test_workers_share_the_port_and_their_metrics(fake: FakeTriton) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with gateway(fake, port, "--workers", "2") as command:
        command.wait_for(f"{url}/v1")

        def post(_: int) -> int:
            return httpx.post(f"{url}/v1/chat/completions", json=BODY, trust_env=False).status_code

        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(post, range(40))) == {200}
        count = 'lmdeploy_gateway_requests_total{method="POST",path="/v1/chat/completions",status="200"} 40.0'
        page = httpx.get(f"{url}/metrics", trust_env=False).text
        assert count in page
        metrics = metrics_of(page)
        assert metrics.one("vllm:e2e_request_latency_seconds_count", model_name=MODEL, engine="0") == 40
        assert metrics.one("vllm:request_success_total", finished_reason="stop") == 40
        first, second = workers_of(command.process.pid)
        os.kill(first, signal.SIGKILL)
        eventually_sync(lambda: len(set(workers_of(command.process.pid)) - {first}) == 2)
        assert command.end() == 143
    assert not any(Path(f"/proc/{pid}").exists() for pid in (first, second))


def workers_of(pid: int) -> list[int]:
    return [child for child in children(pid) if "openai_gateway.process.worker" in command_line(child)]


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("workers", ["2", "1"])
def test_a_stopping_server_answers_what_is_open_and_takes_no_more(fake: FakeTriton, workers: str) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    fake.script = Script(hold_after=1, resume=True)
    with gateway(fake, port, "--workers", workers) as command:
        command.wait_for(f"{url}/v1")
        lines: list[str] = []
        begun = threading.Event()

        def read() -> None:
            body = {**BODY, "stream": True}
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, trust_env=False) as response:
                for line in response.iter_lines():
                    lines.append(line)
                    begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(180)
        command.process.terminate()
        eventually_sync(lambda: not accepts(url))
        assert command.process.poll() is None
        fake.release.set()
        reader.join(180)
        assert "data: [DONE]" in lines
        assert command.process.wait(180) in (143, -signal.SIGTERM)


def accepts(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1, trust_env=False).status_code > 0
    except httpx.HTTPError:
        return False


def test_a_bad_policy_file_stops_the_command(fake: FakeTriton, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    policy = tmp_path / "qos.json"
    policy.write_text("{")
    for flags in ([], ["--workers", "2"]):
        with gateway(fake, port, "--qos-config-path", str(policy), *flags) as command:
            assert command.process.wait(180) == 1
        assert str(policy) in command.output
        assert "Traceback" not in command.output
