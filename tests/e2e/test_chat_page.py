"""The chat page in a real Chromium, in front of the real server and model."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from selenium import webdriver

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.browser import chromium
from tests.support.chat_page import ChatPage
from tests.support.gateways import running_page

pytestmark = pytest.mark.browser

ANSWER_SECONDS = 180.0


def test_real_model_answers_in_the_browser(triton_server: TritonServer, tmp_path: Path) -> None:
    with chromium(tmp_path) as driver, running_page(triton_server.grpc_address) as url:
        page = ChatPage(driver, url)
        page.open_settings()
        page.set(temperature=0)
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
