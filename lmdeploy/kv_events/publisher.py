"""Publisher process of KV cache events: ``python -m lmdeploy.kv_events.publisher CONFIG``.

The engine starts it (backend_cpp/engine/events/event_publisher.h) with an open socket. It says in a line whether it
can publish, then gets a line a step; the end of the socket, whatever the engine died of, is its end.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from typing import TYPE_CHECKING

from lmdeploy.extras import MissingExtraError, require
from lmdeploy.kv_events.config import KvEventsConfig

if TYPE_CHECKING:
    from lmdeploy.kv_events.stream import Stream

CHANNEL_FILE = 3  # as in backend_cpp/model/worker/worker_process.h
_READ_BYTES = 1 << 20


def main(arguments: list[str]) -> int:
    """Publish until the engine goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to act on
    channel = socket.socket(fileno=CHANNEL_FILE)
    try:
        require("events", "kv_events_config")
        from lmdeploy.kv_events.stream import Stream

        stream = Stream(KvEventsConfig.of(json.loads(arguments[0])))
    except (ValueError, MissingExtraError) as error:
        _say(channel, error=str(error))
        return 1
    _say(channel, is_ready="yes")
    _serve(channel, stream)
    stream.close()
    return 0


def _say(channel: socket.socket, **members: str) -> None:
    channel.sendall(json.dumps(members).encode() + b"\n")


def _serve(channel: socket.socket, stream: Stream) -> None:
    import zmq

    poller = zmq.Poller()
    poller.register(channel, zmq.POLLIN)
    if stream.replays is not None:
        poller.register(stream.replays, zmq.POLLIN)
    unfinished = b""
    while True:
        for source, _ in poller.poll():
            if source is stream.replays:
                stream.replay()
                continue
            data = channel.recv(_READ_BYTES)
            if not data:
                return
            *lines, unfinished = (unfinished + data).split(b"\n")
            for line in lines:
                stream.publish(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
