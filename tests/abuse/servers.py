"""The servers that are attacked, as users start them: one with everything on, a proxy in front of it, and Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from lmdeploy.serve.ports import free_ports
from tests.abuse.bodies import MODEL
from tests.abuse.gateway import LOOPING, write_hostile_adapter, write_looping_adapter
from tests.support.adapters import make_adapter
from tests.support.commands import api_server
from tests.support.processes import session_members
from tests.support.servers import answers
from tests.support.tiny_vision_models import make_tiny_llava
from tests.support.waiting import eventually_sync

KEY, ADMIN_KEY, NODE_KEY = "sk-attacker", "sk-administrator", "sk-node"
OTHER_KEY = "sk-other"  # of the caller who asks for a short text meanwhile
ALLOWED_HOST = "allowed.invalid"
SERVERS = ("gateway", "page", "proxy", "ray")
START_SECONDS = 240.0
BLOCKS = 256  # of the KV cache: ordinary traffic has touched them all before memory is looked at


@dataclass(frozen=True)
class Target:
    """A port that is attacked.

    ``name``: ``gateway``, ``page``, ``proxy`` or ``ray``; ``health``: a path that answers quickly, and without a key;
    ``pid``: whose descendants serve it.
    """

    name: str
    port: int
    health: str
    pid: int

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Servers:
    """Servers under attack, and the attacks' tools.

    ``gateway``: of the server with everything on, attacked or not; ``hostile_adapter``: an adapter that the
    administrator might be talked into loading; ``canary``: a file that no response may hold anything of.
    """

    gateway: Target
    targets: tuple[Target, ...]
    hostile_adapter: Path
    canary: Path


@contextmanager
def everything(folder: Path, attacked: Sequence[str]) -> Iterator[Servers]:
    """Serve a tiny vision-language model with all features enabled, a proxy in front of it, and the model on Ray.

    ``folder``: for the model, keys and files. ``attacked``: those of `SERVERS` that become targets; what others do not
    need is not started.
    """
    model = make_tiny_llava(folder / "model")
    # of the text part alone: the tower has layers of the same names otherwise
    adapter = make_adapter(folder / "adapter", model, targets=("gate_proj", "up_proj", "down_proj"))
    write_hostile_adapter(folder / "hostile", adapter)
    write_looping_adapter(folder / "looping", adapter)
    media = folder / "media"
    media.mkdir()
    canary = folder / "canary"
    canary.write_text("nobody may read this canary")
    keys, admin_keys = folder / "keys", folder / "admin-keys"
    keys.write_text(f"{KEY}\n{OTHER_KEY}\n")
    admin_keys.write_text(f"{ADMIN_KEY}\n")
    security = ["--api-keys-file", str(keys), "--admin-keys-file", str(admin_keys)]
    engine = ["--cache-max-entry-count", str(BLOCKS), "--enable-prefix-caching", "--max-batch-size", "16"]
    page_port, proxy_port, ray_port = free_ports(3)
    with ExitStack() as stack:
        server = stack.enter_context(
            api_server(
                str(model),
                *("--model-name", MODEL, "--webui", "--webui-port", str(page_port), *security, *engine),
                *("--server-name", "127.0.0.1", "--adapters", f"verses={adapter}"),
                *("--files-dir", str(folder / "files"), "--responses-store", str(folder / "responses")),
                *("--split-special-tokens", "--cache-salt-by-key", "--node-key", NODE_KEY),
                *("--allowed-media-domains", ALLOWED_HOST, "--allowed-local-media-path", str(media)),
                *("--speculative-config", '{"method": "ngram"}'),
            )
        )
        server.wait_ready()
        launcher = server.process.pid
        gateway = Target("gateway", server.port, "/health", launcher)
        loaded = {"lora_name": LOOPING, "lora_path": str(folder / "looping")}
        administrator = {"authorization": f"Bearer {ADMIN_KEY}"}
        url = f"{gateway.url}/v1/load_lora_adapter"
        httpx.post(url, json=loaded, headers=administrator, trust_env=False, timeout=60).raise_for_status()
        page = Target("page", page_port, "/login", launcher)
        pid = stack.enter_context(
            _command("proxy", "--server-name", "127.0.0.1", "--server-port", str(proxy_port),
                     "--node-key", NODE_KEY, "--allow-private-nodes", *security)
        )  # fmt: skip
        proxy = Target("proxy", proxy_port, "/health", pid)
        for url in (f"{page.url}/", f"{proxy.url}/health"):
            eventually_sync(partial(answers, url), timeout=START_SECONDS)
        added = httpx.post(
            f"{proxy.url}/nodes/add",
            json={"url": gateway.url, "status": {"models": [MODEL]}},
            headers=administrator,
            trust_env=False,
        )
        assert added.status_code == 200, added.text
        targets = [target for target in (gateway, page, proxy) if target.name in attacked]
        if "ray" in attacked:
            pid = stack.enter_context(
                _command("ray", str(model), "--server-name", "127.0.0.1", "--server-port", str(ray_port),
                         "--model-name", MODEL, "--api-keys-file", str(keys), "--cpus-per-replica", "0",
                         "--cache-max-entry-count", str(BLOCKS))
            )  # fmt: skip
            targets.append(Target("ray", ray_port, "/health", pid))
            eventually_sync(lambda: answers(targets[-1].url + targets[-1].health), timeout=START_SECONDS)
        yield Servers(gateway, tuple(targets), folder / "hostile", canary)


@contextmanager
def _command(*words: str) -> Iterator[int]:
    """Run ``lmdeploy serve`` in its own session; the value is its process."""
    command = [sys.executable, "-m", "lmdeploy", "serve", *words]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            for pid in session_members(process.pid):
                os.kill(pid, signal.SIGKILL)
