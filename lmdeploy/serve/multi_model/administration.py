"""Load and unload models of a tritonserver that runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from lmdeploy.serve.channel import Channel
from lmdeploy.serve.errors import TritonRequestError, TritonUnavailable
from lmdeploy.serve.multi_model.placing import place_another
from lmdeploy.serve.multi_model.prepared import PreparedModel
from lmdeploy.serve.multi_model.registry import Registry, RegistryBusyError, ServedEntry
from lmdeploy.serve.multi_model.requested import RequestedModel, require_distinct
from lmdeploy.serve.restrictions import GRPC_KEY_HEADER

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_UNLOAD_MARGIN = 60.0  # seconds beyond those that open requests get
_BUSY, _INVALID, _UNKNOWN = "ABORTED", "INVALID_ARGUMENT", "NOT_FOUND"
# How Triton begins to say why a model could not be loaded.
_LOAD_FAILURE = re.compile(
    r"load failed for model '[^']*': (?:version \d+ is at \w+ state: )?(?P<reason>.*?);?\s*", re.S
)


class Administration:
    """Changes what a tritonserver serves; one change at a time, whoever makes it.

    ``key``: what its model repository is opened with (`TritonServer.repository_key`).
    """

    def __init__(self, registry: Registry, triton_address: str, key: str, unload_seconds: float) -> None:
        self._registry = registry
        self._address = triton_address  # ``host:port`` of its gRPC service
        self._metadata = ((GRPC_KEY_HEADER, key),)
        self._unload_seconds = unload_seconds  # what open requests get once their model is being unloaded

    async def load(self, requested: RequestedModel) -> None:
        """Load one more model. Where that fails, everything is as it was.

        Raises `TritonRequestError` if its name is taken, it cannot be loaded or does not fit; the text says why, and
        `TritonUnavailable` if the server cannot be reached.
        """
        with self._changing():
            served = self._registry.models()
            try:
                require_distinct([*(entry.name for entry in served), requested.name])
                prepared = await _prepared(requested)
                entry = await asyncio.to_thread(place_another, self._registry, prepared, self._unload_seconds)
            except (ValueError, OSError) as error:
                raise TritonRequestError(_INVALID, str(error)) from None
            try:
                await self._load(entry)
            except BaseException:
                with contextlib.suppress(TritonUnavailable, TritonRequestError):
                    await self._unload(entry)
                self._registry.remove_folders(entry.suffix)
                raise
            self._registry.write([*served, entry])
        logger.info("model %s is loaded from %s", entry.name, entry.engine_dir)

    async def unload(self, name: str) -> None:
        """Refuse later requests for a model, let open ones end, and give its memory back.

        Raises `TritonRequestError` if there is none of that name, and `TritonUnavailable` if the server cannot be
        reached.
        """
        with self._changing():
            served = self._registry.models()
            entry = next((entry for entry in served if entry.name == name), None)
            if entry is None:
                raise TritonRequestError(_UNKNOWN, f"there is no model {name}")
            self._registry.write([other for other in served if other != entry])
            await self._unload(entry)
            self._registry.remove_folders(entry.suffix)
        logger.info("model %s is unloaded", name)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with self._registry.changing():
                yield
        except RegistryBusyError as error:
            raise TritonRequestError(_BUSY, str(error)) from None

    async def _load(self, entry: ServedEntry) -> None:
        async with self._stub() as stub:
            for model in entry.triton_models:
                request = service_pb2.RepositoryModelLoadRequest(model_name=model)
                try:
                    await stub.RepositoryModelLoad(request, metadata=self._metadata)
                except grpc.aio.AioRpcError as error:
                    raise self._error(entry.name, error) from None

    async def _unload(self, entry: ServedEntry) -> None:
        async with self._stub() as stub:
            for model in reversed(entry.triton_models):
                request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
                try:
                    await stub.RepositoryModelUnload(request, metadata=self._metadata)
                except grpc.aio.AioRpcError as error:
                    raise self._error(entry.name, error) from None
            deadline = time.monotonic() + self._unload_seconds + _UNLOAD_MARGIN
            while left := await self._loaded(stub, set(entry.triton_models)):
                if time.monotonic() > deadline:
                    raise TritonRequestError("INTERNAL", f"{entry.name} could not be unloaded: {left} is still there")
                await asyncio.sleep(_POLL)

    async def _loaded(self, stub: Any, models: set[str]) -> str:
        """Return one of these models that Triton has not let go; empty: it has none of them."""
        try:
            index = await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise self._error("", error) from None
        return next(
            (item.name for item in index.models if item.name in models and item.state not in ("", "UNAVAILABLE")), ""
        )

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        channel = Channel(self._address)
        try:
            yield channel.stub()
        finally:
            await channel.close()

    def _error(self, name: str, error: grpc.aio.AioRpcError) -> TritonUnavailable | TritonRequestError:
        details = error.details() or "no details given"
        if failure := _LOAD_FAILURE.fullmatch(details):
            return TritonRequestError(_INVALID, f"model {name} could not be loaded: {failure['reason']}")
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return TritonUnavailable(f"Triton at {self._address} is not available: {details}")
        return TritonRequestError("INTERNAL", details)


async def _prepared(requested: RequestedModel) -> PreparedModel:
    """Prepare a model in its own process; raise `ValueError` if it cannot be; the text says why."""
    command = [sys.executable, "-m", "lmdeploy.serve.multi_model.prepare"]
    done = await asyncio.to_thread(subprocess.run, command, input=requested.to_json(), capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ValueError(f"model {requested.name} could not be loaded: {lines[-1] if lines else 'no reason was given'}")
    return PreparedModel.from_json(done.stdout.splitlines()[-1])
