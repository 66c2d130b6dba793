"""Shared gRPC channel to a Triton."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc.aio
from tritonclient.grpc import service_pb2_grpc

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A restarted server is found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 2000),  # of an attempt: a busy machine may take a while to answer it
    ("grpc.primary_user_agent", "lmdeploy"),
]
_END_SECONDS = 5.0  # in which calls end that are under way when the channel is closed

Result = TypeVar("Result")


class Channel:
    """A channel that is opened at its first use. Use it inside one event loop."""

    def __init__(self, address: str) -> None:
        self._address = address  # ``host:port`` of Triton's gRPC service
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._running: set[asyncio.Task[Any]] = set()

    def stub(self) -> Any:
        """Return the stub of Triton's inference service."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub

    def run(self, call: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run a call in its own task; `close` waits for its end.

        Triton 2.51 can crash when a client cancels a call that it responds to, and gRPC cancels a call when the task
        that waits for it is cancelled, when its deadline is over and when its channel is closed.
        """
        task = asyncio.get_running_loop().create_task(call)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Let open calls end, then close it; the next use opens another one."""
        if self._running:
            await asyncio.wait(self._running, timeout=_END_SECONDS)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
