"""The chat page served in this process, and browsers that look at it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from selenium import webdriver

from tests.support.browser import chromium, missing_programs
from tests.support.fake_triton import FakeTriton
from tests.support.waiting import eventually_sync


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshot", help="where to write a picture of a chat with the real model")


@contextlib.contextmanager
def served(triton_address: str) -> Iterator[str]:
    """Serve the page for a Triton; yields its URL."""
    from webui.app import create_app

    config = uvicorn.Config(
        create_app(triton_address), host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="webui")
    thread.start()
    try:
        eventually_sync(lambda: server.started, 30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="session")
def fake_triton_server() -> Iterator[FakeTriton]:
    fake = FakeTriton()
    yield fake
    fake.stop()


@pytest.fixture
def fake_triton(fake_triton_server: FakeTriton) -> FakeTriton:
    fake_triton_server.reset()
    return fake_triton_server


@pytest.fixture(scope="session")
def page_url(fake_triton_server: FakeTriton) -> Iterator[str]:
    with served(fake_triton_server.address) as url:
        yield url


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if reason := missing_programs():
        pytest.skip(f"no browser: {reason}")
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def serve_page() -> Iterator[Callable[[str], str]]:
    """Return a function that serves the page for a Triton address until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda address: stack.enter_context(served(address))


@pytest.fixture
def screenshot_path(request: pytest.FixtureRequest) -> Path | None:
    named = request.config.getoption("--screenshot", default=None)
    return Path(named) if named else None
