"""The chat page in front of a scripted Triton, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.browser import chromium
from tests.support.chat_page import ChatPage
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_page


@pytest.fixture(scope="session")
def fake_triton_server() -> Iterator[FakeTriton]:
    with FakeTriton() as fake:
        yield fake


@pytest.fixture
def fake_triton(fake_triton_server: FakeTriton) -> FakeTriton:
    fake_triton_server.reset()
    return fake_triton_server


@pytest.fixture(scope="session")
def page_url(fake_triton_server: FakeTriton) -> Iterator[str]:
    with running_page(fake_triton_server.address) as url:
        yield url


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def opened_page(driver: webdriver.Chrome, page_url: str) -> Iterator[ChatPage]:
    page = ChatPage(driver, page_url)
    yield page
    page.close()


@pytest.fixture
def page(opened_page: ChatPage, fake_triton: FakeTriton) -> ChatPage:
    """The module's page, with a new chat and what settings it has."""
    opened_page.begin_again()
    return opened_page
