"""A replica: an actor that owns one ``lmdeploy serve api_server`` and passes requests on to it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from urllib.parse import parse_qsl

import aiohttp
from ray import serve
from yarl import URL

from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.keys import environment_of, variable_of
from lmdeploy.serve.ports import free_ports
from lmdeploy.serve.ray.exchange import UNAVAILABLE, Head, RoutedRequest
from lmdeploy.serve.ray.settings import FAILED, RaySettings

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_POLL = 0.1  # seconds
_SHOWN_LINES = 20
# No options of a replica either.
_KEYS_OF_OTHERS = frozenset(map(variable_of, ("admin-keys", "proxy-key", "node-key")))
# Ray's proxy writes the request's id itself.
_SENT_BACK = ("content-type", "retry-after", "cache-control", "www-authenticate", "location", "allow")
_ALLOWED_BACK = "access-control-"
_ADAPTERS = 8  # that a replica is known to have in memory; its engine has its own bound
_WAITING = re.compile(r"^vllm:num_requests_waiting\{[^}]*\} (\S+)", re.MULTILINE)


class Replica:
    """Ray Serve deployment that runs once for each replica."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, settings: RaySettings, api_keys: tuple[str, ...]
    ) -> None:
        port, *triton = free_ports(4)
        command = [sys.executable, "-m", "lmdeploy", "serve", "api_server", *settings.arguments()]
        command += ["--server-name", _HOST, "--server-port", str(port)]
        for name, value in zip(("http", "grpc", "metrics"), triton, strict=True):
            command += [f"--triton-{name}-port", str(value)]
        if "drain-seconds" not in settings.options:
            command += ["--drain-seconds", str(settings.drain_seconds)]
        self._name = serve.get_replica_context().replica_id.unique_id
        self._is_stopping = False
        self._drain = settings.drain_seconds
        env = {name: value for name, value in os.environ.items() if name not in _KEYS_OF_OTHERS}
        env |= environment_of({"api-keys": api_keys})
        self._server = ChildProcess(command, env=env, log=logger.info)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0)
        self._base = URL.build(scheme="http", host=_HOST, port=port)
        self._http = aiohttp.ClientSession(connector=connector, timeout=timeout)
        while not await self._is_healthy():
            if self._server.returncode is not None:
                last = "\n".join(self._server.tail()[-_SHOWN_LINES:])
                raise RuntimeError(f"{FAILED}\n{last}")
            await asyncio.sleep(_POLL)
        threading.Thread(target=self._end_with_server, name="server's end", daemon=True).start()

    async def respond(self, routed: RoutedRequest) -> AsyncGenerator[Head | bytes, None]:
        """Yield the response's head, then its body as it comes. Who leaves the generator ends the request."""
        if model := serve.get_multiplexed_model_id():
            await self.adapter(model)
        async with AsyncExitStack() as open_:
            url = url_of(self._base, routed.path, routed.query)
            request = self._http.request(
                routed.method, url, data=routed.body, headers=routed.headers, allow_redirects=False
            )
            try:
                response = await open_.enter_async_context(request)
            except aiohttp.ClientError:  # its server has just ended
                yield Head(self._name, UNAVAILABLE, {})
                return
            kept = {
                name: value
                for name, value in ((name.lower(), value) for name, value in response.headers.items())
                if name in _SENT_BACK or name.startswith(_ALLOWED_BACK)
            }
            yield Head(self._name, response.status, kept)
            async for piece in response.content.iter_any():
                yield piece

    @serve.multiplexed(max_num_models_per_replica=_ADAPTERS)
    async def adapter(self, name: str) -> str:
        """Tell Ray that this replica has an adapter in memory; the engine reads it with the request that names it."""
        return name

    async def check_health(self) -> None:
        """Raise unless requests can be answered; Ray asks."""
        if not await self._is_healthy():
            raise RuntimeError("the model is not ready")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the autoscaling metric: requests that wait before the engine's batch."""
        async with self._http.get(self._base / "metrics") as response:
            found = _WAITING.search(await response.text())
        return {"waiting": float(found[1]) if found else 0.0}

    async def __del__(self) -> None:  # Ray calls it once no request is open
        """Stop the server."""
        self._is_stopping = True
        await self._http.close()
        await asyncio.to_thread(self._server.stop, self._drain)

    async def _is_healthy(self) -> bool:
        try:
            async with self._http.get(self._base / "health", timeout=aiohttp.ClientTimeout(total=5)) as response:
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    def _end_with_server(self) -> None:
        """End this process when the server does: Ray sees that at once, and starts another replica."""
        self._server.wait()
        if not self._is_stopping:
            logger.error("%s\n%s", FAILED, "\n".join(self._server.tail()[-_SHOWN_LINES:]))
            os._exit(1)


def url_of(base: URL, path: str, query: str) -> URL:
    """Return where a request goes: to this server in any case, whatever its path and query hold."""
    return base.with_path(path).with_query(parse_qsl(query, keep_blank_values=True))
