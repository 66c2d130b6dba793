"""A model's text makes the reader's browser ask no other host, which would learn of the conversation."""

from __future__ import annotations

import time

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.support.browser import requested_hosts
from tests.support.chat_page import ChatPage
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_page
from tests.support.http_host import NOT_FOUND, running_host
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.browser

WRITTEN = """
![a]({0}/markdown)
![a][b]

[b]: {0}/reference

<img src="{0}/img"><img srcset="{0}/srcset 2x"><input type="image" src="{0}/input">
<picture><source srcset="{0}/source"><img></picture>
<video src="{0}/video" poster="{0}/poster" autoplay></video><audio src="{0}/audio" autoplay></audio>
<div style="width: 9px; height: 9px; background: url({0}/style)">a</div>
<div style="width: 9px; height: 9px; background-image: image-set('{0}/image-set' 1x)">a</div>
<ul style="list-style-image: url({0}/list)"><li>a</li></ul>
<svg width="9" height="9"><image href="{0}/svg" width="9" height="9"/><use href="{0}/use#a"/></svg>
<iframe src="{0}/iframe"></iframe><object data="{0}/object"></object><embed src="{0}/embed">
<link rel="stylesheet" href="{0}/link"><link rel="prefetch" href="{0}/prefetch">
<style>@import url({0}/import); @font-face {{ font-family: a; src: url({0}/font) }} p {{ font-family: a }}</style>
<math href="{0}/math"><mi>a</mi></math>

```mermaid
flowchart LR
    a["<img src='{0}/mermaid'>"]
```

$\\\\includegraphics{{{0}/latex}}$
"""


def test_no_host_hears_of_what_a_model_writes(driver: webdriver.Chrome, page_url: str, fake_triton: FakeTriton) -> None:
    with running_host(lambda _: NOT_FOUND) as host:
        driver.get(f"{host.url}/hello")
        page = ChatPage(driver, page_url)
        try:
            fake_triton.script = Script(texts=[WRITTEN.format(host.url)])
            page.send("Hello")
            page.wait_for_response(1)
            time.sleep(2)  # in which a browser asks for what it shows
        finally:
            page.close()
    assert {*host.visits} - {"GET /favicon.ico"} == {"GET /hello"}


def test_a_key_is_shown_in_a_browser_and_nothing_on_the_page_is_missing(
    driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    with running_page(fake_triton.address, ["secret-key"]) as url:
        driver.switch_to.new_window("tab")
        window = driver.current_window_handle
        driver.get_log("browser")
        requested_hosts(driver)
        driver.get(url)
        eventually_sync(lambda: len(driver.find_elements(By.CSS_SELECTOR, "input")) >= 2)
        for field, text in zip(driver.find_elements(By.CSS_SELECTOR, "input"), ("me", "secret-key"), strict=False):
            field.send_keys(text)
        driver.find_element(By.CSS_SELECTOR, "button").click()
        eventually_sync(lambda: bool(driver.find_elements(By.CSS_SELECTOR, "#question textarea")))
        driver.close()
        driver.switch_to.window(driver.window_handles[0])
        page = ChatPage(driver, url)
        try:
            page.send("Hello")
            page.wait_for_response(1)
        finally:
            page.close()
        assert window not in driver.window_handles
        assert requested_hosts(driver) <= {"127.0.0.1"}
        missing = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert missing == []
