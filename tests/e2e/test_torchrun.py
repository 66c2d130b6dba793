"""API servers that torchrun starts, as LMDeploy's manual shows it, register at one proxy and serve its requests."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.ports import free_ports
from openai_gateway.proxy.settings import ProxySettings
from tests.support.gateways import running_proxy
from tests.support.servers import START
from tests.support.waiting import eventually_sync

RANKS = 2
# A user's script: a server a process, on ports of its own.
SCRIPT = """
import os, sys

rank = int(os.environ["LOCAL_RANK"])
assert int(os.environ["WORLD_SIZE"]) > 1
proxy_url, *ports = sys.argv[1:]
port, http, grpc, metrics = ports[4 * rank : 4 * rank + 4]
os.execv(sys.executable, [
    sys.executable, "-m", "lmdeploy", "serve", "api_server", "--server-name", "127.0.0.1", "--server-port", port,
    "--triton-http-port", http, "--triton-grpc-port", grpc, "--triton-metrics-port", metrics,
    "--cache-max-entry-count", "16", "--proxy-url", proxy_url,
])
"""


def test_servers_that_torchrun_starts_register_at_one_proxy_and_leave(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ports = free_ports(4 * RANKS)
    expected = {f"http://127.0.0.1:{port}" for port in ports[::4]}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]
    with (
        running_proxy(ProxySettings(check_seconds=1)) as url,
        (tmp_path / "log").open("w") as log,
        httpx.Client(base_url=url, trust_env=False) as http,
    ):

        def registered() -> set[str]:
            return set(http.get("/nodes/status").json())

        started = subprocess.Popen([*command, str(script), url, *map(str, ports)], stdout=log, stderr=log)
        try:
            eventually_sync(lambda: registered() == expected or started.poll() is not None, timeout=RANKS * START)
            assert registered() == expected, (tmp_path / "log").read_text()
            body = {"model": DEFAULT_MODEL_NAME, "prompt": "The capital of France is", "max_tokens": 4}
            for _ in range(4 * RANKS):
                response = http.post("/v1/completions", json={**body, "temperature": 0}).json()
                assert response["choices"][0]["text"].startswith(" Paris")
            started.send_signal(signal.SIGTERM)
            started.wait(180)
            assert registered() == set()
        finally:
            print((tmp_path / "log").read_text())  # for the report of a failure
            if started.poll() is None:
                started.terminate()  # it ends its servers; killed, it would leave them behind
                started.wait(180)
