"""A replica: an actor that owns one ``lmdeploy serve api_server``, which the ingress sends requests to."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass

import aiohttp
import ray

from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.keys import environment_of, variable_of
from lmdeploy.serve.ports import free_ports
from lmdeploy.serve.ray.settings import FAILED, RaySettings

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_SHOWN_LINES = 20
# No options of a replica either.
_KEYS_OF_OTHERS = frozenset(map(variable_of, ("admin-keys", "proxy-key")))
_REQUESTS = re.compile(r"^vllm:num_requests_(waiting|running)\{[^}]*\} (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Server:
    """A replica's server, as a node of the ingress."""

    url: str
    models: list[str]


class Replica:
    """Ray Serve deployment that runs once for each replica."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        settings: RaySettings,
        api_keys: tuple[str, ...],
        node_key: str,  # the ingress shows it
    ) -> None:
        host = ray.util.get_node_ip_address()
        (port,), triton = free_ports(1, host), free_ports(3)
        command = [sys.executable, "-m", "lmdeploy", "serve", "api_server", *settings.arguments()]
        command += ["--server-name", host, "--server-port", str(port)]
        for name, value in zip(("http", "grpc", "metrics"), triton, strict=True):
            command += [f"--triton-{name}-port", str(value)]
        if "drain-seconds" not in settings.options:
            command += ["--drain-seconds", str(settings.drain_seconds)]
        self._is_stopping = False
        self._drain = settings.drain_seconds
        env = {name: value for name, value in os.environ.items() if name not in _KEYS_OF_OTHERS}
        env |= environment_of({"api-keys": api_keys, "node-key": [node_key]})
        self._child = ChildProcess(command, env=env, log=logger.info)
        self._url = f"http://{host}:{port}"
        self._http = aiohttp.ClientSession(
            self._url, headers={"authorization": f"Bearer {node_key}"}, timeout=aiohttp.ClientTimeout(total=5)
        )
        while not await self._is_healthy():
            if self._child.returncode is not None:
                last = "\n".join(self._child.tail()[-_SHOWN_LINES:])
                raise RuntimeError(f"{FAILED}\n{last}")
            await asyncio.sleep(_POLL)
        async with self._http.get("/v1/models", raise_for_status=True) as response:
            self._models = [str(card["id"]) for card in (await response.json())["data"]]
        threading.Thread(target=self._end_with_server, name="server's end", daemon=True).start()

    async def server(self) -> Server:
        """Return where the ingress sends requests."""
        return Server(self._url, self._models)

    async def check_health(self) -> None:
        """Raise unless requests can be answered; Ray asks."""
        if not await self._is_healthy():
            raise RuntimeError("the model is not ready")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the autoscaling metrics: requests that wait before the engine's batch, and those in it."""
        async with self._http.get("/metrics") as response:
            return {state: float(count) for state, count in _REQUESTS.findall(await response.text())}

    async def __del__(self) -> None:  # Ray calls it once the replica is no node of the ingress
        """Stop the server, after its open requests."""
        self._is_stopping = True
        await self._http.close()
        await asyncio.to_thread(self._child.stop, self._drain)

    async def _is_healthy(self) -> bool:
        try:
            async with self._http.get("/health") as response:
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    def _end_with_server(self) -> None:
        """End this process when the server does: Ray sees that at once, and starts another replica."""
        self._child.wait()
        if not self._is_stopping:
            logger.error("%s\n%s", FAILED, "\n".join(self._child.tail()[-_SHOWN_LINES:]))
            os._exit(1)
