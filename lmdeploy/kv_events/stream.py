"""ZMQ sockets of the KV event stream."""

from __future__ import annotations

import time
from collections import deque

import zmq

from lmdeploy.kv_events.config import KvEventsConfig
from lmdeploy.kv_events.events import payload, read_step

_END = b"\xff" * 8  # in place of a sequence number: no further batch follows
_LINGER = 1000  # milliseconds for what is not sent yet, at the end


class Stream:
    """Publishes steps, and sends them once more to who asks.

    Messages have three frames: topic, sequence number (8 bytes, highest first) and payload. A replay is asked for
    with an empty frame and the first number wanted; each batch comes after an empty frame, and one with the number
    -1 and nothing else ends it.

    Raises `ValueError` if a socket cannot be bound.
    """

    def __init__(self, config: KvEventsConfig) -> None:
        self._format = config.event_format
        self._topic = config.topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps if config.replay_endpoint else 0)
        self._context = zmq.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.set_hwm(config.hwm)
        _open(self._publisher, "endpoint", config.endpoint)
        self.replays: zmq.Socket[bytes] | None = None
        if config.replay_endpoint:
            self.replays = self._context.socket(zmq.ROUTER)
            self.replays.set_hwm(0)  # what is kept bounds it
            _open(self.replays, "replay_endpoint", config.replay_endpoint)

    def publish(self, line: bytes) -> None:
        """Publish a step, a line as the engine writes it. Never waits for readers."""
        step = read_step(line)
        data = payload(step, self._format, time.time())
        self._kept.append((step.sequence, data))
        self._publisher.send_multipart([self._topic, _number(step.sequence), data])

    def replay(self) -> None:
        """Answer what has been asked for; questions of another form are dropped."""
        assert self.replays is not None
        caller, *frames = self.replays.recv_multipart()
        if len(frames) != 2 or frames[0] or len(frames[1]) != 8:
            return
        first = int.from_bytes(frames[1], "big")
        for sequence, data in self._kept:
            if sequence >= first:
                self.replays.send_multipart([caller, b"", self._topic, _number(sequence), data])
        self.replays.send_multipart([caller, b"", b"", _END, b""])

    def close(self) -> None:
        """Send what is not sent yet, for a moment, and close."""
        self._context.destroy(linger=_LINGER)


def _number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def _open(socket: zmq.Socket[bytes], name: str, endpoint: str) -> None:
    """Bind what names all addresses or a file, else connect, as vLLM does."""
    binds = "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")
    try:
        (socket.bind if binds else socket.connect)(endpoint)
    except zmq.ZMQError as error:
        reason = zmq.strerror(error.errno) if error.errno is not None else str(error)
        raise ValueError(f"{name} {endpoint} cannot be used: {reason}; name another one") from None
