"""Callers of a server in these tests, and their view of it."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx

from tests.support.commands import ApiServer
from tests.support.metrics import measurement, open_requests
from tests.support.waiting import eventually_sync

STORY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Once upon a time"}],
    "ignore_eos": True,
    "max_tokens": 30_000,
    "stream": True,
}


class Reader(threading.Thread):
    """Reads one long streamed response to its end, however that comes."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__()
        self._url = f"{server.url}/v1/chat/completions"
        self.begun = threading.Event()
        self.status = 0
        self.last = ""
        self.broke: httpx.HTTPError | None = None
        self.start()
        assert self.begun.wait(180)

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=STORY, trust_env=False) as response:
                self.status = response.status_code
                for line in filter(None, response.iter_lines()):
                    self.last = line
                    self.begun.set()
        except httpx.HTTPError as error:
            self.broke = error

    def end(self) -> str:
        """Wait for the end; return the code of the error that the response ended with, or how its connection broke."""
        self.join(180)
        assert not self.is_alive(), "a response waits forever"
        if self.broke is not None:
            return type(self.broke).__name__
        reported = json.loads(self.last.removeprefix("data: "))
        return str(reported["error"]["code"])


def complete(server: ApiServer, **fields: Any) -> httpx.Response:
    """Ask for a short response."""
    body = STORY | {"max_tokens": 4, "stream": False} | fields
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False)


def is_answered(server: ApiServer) -> bool:
    """Return whether a request is; what else may come is a refused connection or 503."""
    try:
        response = complete(server)
    except httpx.TransportError:
        return False
    if response.status_code == 503:
        assert response.json()["error"]["code"] == "service_unavailable"
        return False
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 4
    return True


def expect_no_leaks(server: ApiServer) -> None:
    """Wait until no request is open and no cache block used."""
    eventually_sync(lambda: measurement(server.metrics_url, "turbomind_cache_blocks_used") == 0)
    eventually_sync(lambda: measurement(server.metrics_url, "turbomind_requests_running") == 0)
    eventually_sync(lambda: open_requests(server.url) == 0)
