"""gRPC response stream of Triton, read to its end even when its caller leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from tritonclient.grpc import service_pb2

from lmdeploy.serve.channel import Channel

_MAX_UNREAD = 64  # responses; further ones stay with gRPC, whose window is bounded, and then with Triton


class ResponseStream:
    """Sends the one request of a stream, and reads its responses in its own task, a bounded number ahead.

    A caller that leaves stops the request in the engine, and the stream ends by itself (see `Channel.run`).
    """

    def __init__(self, channel: Channel, call: Any, message: service_pb2.ModelInferRequest) -> None:
        self._call = call
        self._received: asyncio.Queue[Any] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._is_heard = True
        self._task = channel.run(self._read(message))

    async def read(self) -> Any:
        """Return the next response, or ``grpc.aio.EOF``; raise what ended the stream."""
        received = await self._received.get()
        self._may_read.set()
        if isinstance(received, BaseException):
            raise received
        return received

    async def end(self, seconds: float) -> None:
        """Drop what still comes, and wait until the stream has ended; cancel it after some seconds."""
        self._is_heard = False
        self._may_read.set()
        await asyncio.wait([self._task], timeout=seconds)
        self._call.cancel()

    async def _read(self, message: service_pb2.ModelInferRequest) -> None:
        try:
            await self._call.write(message)
            await self._call.done_writing()
            while (response := await self._call.read()) is not grpc.aio.EOF:
                if not self._is_heard:
                    continue
                self._received.put_nowait(response)
                while self._is_heard and self._received.qsize() >= _MAX_UNREAD:
                    self._may_read.clear()
                    await self._may_read.wait()
            self._received.put_nowait(grpc.aio.EOF)
        except asyncio.CancelledError as error:  # the channel was closed
            self._received.put_nowait(error)
            raise
        except Exception as error:
            self._received.put_nowait(error)
