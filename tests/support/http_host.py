"""Small HTTP servers of tests' own."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Handler of a server's requests that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def read_body(self) -> bytes:
        """Return the body of the request."""
        length = self.headers.get("content-length", "")
        return self.rfile.read(int(length)) if length.isdigit() else b""


@contextmanager
def serving(handler: type[QuietHandler]) -> Iterator[str]:
    """Serve on a free port of this machine; the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="host of a test")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Request:
    """Request to a host; names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """Response of a host; its connection ends with it."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


NOT_FOUND = Reply(status=404)


@dataclass
class Host:
    """A server that notes what it is asked."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Its name and port."""
        return self.url.removeprefix("http://")

    @property
    def visits(self) -> list[str]:
        """Method and path of each request."""
        return [f"{request.method} {request.path}" for request in self.requests]


@contextmanager
def running_host(respond: Callable[[Request], Reply]) -> Iterator[Host]:
    """Run a server that answers each request by a function."""
    host = Host()

    class Handler(QuietHandler):
        def answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, self.read_body())
            host.requests.append(request)
            reply = respond(request)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # nobody waits any more
                self.wfile.write(reply.body)

        do_GET = do_POST = answer

    with serving(Handler) as host.url:
        yield host
