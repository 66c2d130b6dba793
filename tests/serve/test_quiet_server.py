"""A server that sleeps until it is asked for something, or to end."""

import threading

import httpx
import pytest
import uvicorn

from lmdeploy.serve import quiet_server
from lmdeploy.serve.quiet_server import QuietServer
from tests.support.waiting import eventually_sync


async def app(scope: dict, receive: object, send: object) -> None:  # type: ignore[type-arg]
    await send({"type": "http.response.start", "status": 204, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body"})  # type: ignore[operator]


def test_a_server_that_sleeps_for_an_hour_answers_and_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_server, "_TICK", 3600.0)
    server = QuietServer(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))  # type: ignore[arg-type]
    assert not server.should_exit
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually_sync(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    response = httpx.get(f"http://127.0.0.1:{port}", trust_env=False)
    assert response.status_code == 204
    assert response.headers["date"].endswith("GMT")
    server.should_exit = True
    thread.join(180)
    assert not thread.is_alive()
    server.should_exit = True  # once more harms nothing
