"""The chat page in a real Chromium, in front of the real server and model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.browser import chromium
from tests.support.chat_page import ChatPage
from tests.support.gateways import running_page
from tests.support.metrics import engine_metrics
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.browser

ANSWER_SECONDS = 180.0


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def url(triton_server: TritonServer) -> Iterator[str]:
    with running_page(triton_server.grpc_address) as address:
        yield address


@pytest.fixture(scope="module")
def opened_page(driver: webdriver.Chrome, url: str) -> ChatPage:
    page = ChatPage(driver, url)
    page.open_settings()
    page.set(temperature=0)
    return page


@pytest.fixture
def page(opened_page: ChatPage) -> ChatPage:
    opened_page.begin_again()
    return opened_page


def test_real_model_answers_in_the_browser(page: ChatPage, driver: webdriver.Chrome) -> None:
    assert page.title == DEFAULT_MODEL_NAME
    page.send("What is the capital of France?")
    page.wait_for_response(1, ANSWER_SECONDS)
    assert "Paris" in page.responses[0]
    assert "tokens/s" in page.responses[1]
    if folder := os.environ.get("CHAT_SCREENSHOTS"):
        page.send("Name three things to pack for a rainy day, as a list.")
        page.wait_for_response(2, ANSWER_SECONDS)
        take_images(page, driver, Path(folder))


def take_images(page: ChatPage, driver: webdriver.Chrome, folder: Path) -> None:
    """Write what the page looks like: light, dark, with its sides unfolded, and on a telephone."""
    folder.mkdir(parents=True, exist_ok=True)
    page.open_list()
    page.close_settings()
    time.sleep(1)  # until the sides have moved
    driver.save_screenshot(folder / "chat.png")
    page.open_settings()
    driver.execute_script("document.body.classList.add('dark')")
    time.sleep(1)
    driver.save_screenshot(folder / "chat-dark.png")
    driver.execute_script("document.body.classList.remove('dark')")
    page.close_settings()
    page.close_list()
    size = {"width": 390, "height": 760, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    time.sleep(1)
    driver.save_screenshot(folder / "chat-phone.png")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_stop_frees_the_requests_blocks(page: ChatPage, triton_server: TritonServer) -> None:
    before = engine_metrics(triton_server)["requests_cancelled_total"]
    page.send("Tell me a very long story about the sea.")
    page.wait(lambda: len(page.responses) == 1 and len(page.responses[0]) > 20, ANSWER_SECONDS)
    assert engine_metrics(triton_server)["cache_blocks_used"] > 0
    page.press("stop")
    page.wait_for_response(1)
    assert page.responses[1].endswith("stopped")
    eventually_sync(lambda: engine_metrics(triton_server)["requests_cancelled_total"] == before + 1)
    eventually_sync(lambda: engine_metrics(triton_server)["cache_blocks_used"] == 0)
