"""An HTTP forwarder on loopback that records what a client sends and the status of each response."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Exchange:
    """A request as the client sent it, and the status it received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int


@dataclass
class Recorder:
    """Where clients are pointed at, and what passed."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def recording(target: str) -> Iterator[Recorder]:
    """Forward to the server at ``target``, a URL without a path; responses are streamed."""

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            sent = {name.lower(): value for name, value in self.headers.items()}
            upstream = http.client.HTTPConnection(urlsplit(target).netloc, timeout=120)
            upstream.request(self.command, self.path, body, sent | {"connection": "close"})
            response = upstream.getresponse()
            recorder.exchanges.append(Exchange(self.command, self.path, sent, body, response.status))
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in {"connection", "transfer-encoding"}:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while piece := response.read1():
                self.wfile.write(piece)
                self.wfile.flush()
            upstream.close()

        do_GET = do_HEAD = do_POST = do_DELETE = forward

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorder = Recorder(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, name="recorder")
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
