"""The gRPC channel to a Triton, as all clients of one share it."""

from __future__ import annotations

from typing import Any

import grpc.aio
from tritonclient.grpc import service_pb2_grpc

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A restarted server is found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.primary_user_agent", "lmdeploy"),
]


class Channel:
    """A channel that is opened at its first use. Use it inside one event loop.

    Parameters
    ----------
    address : str
        ``host:port`` of Triton's gRPC service.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    def stub(self) -> Any:
        """Return what calls are made with."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub

    async def close(self) -> None:
        """Close it; the next use opens another one."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
