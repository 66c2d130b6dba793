"""A real headless Chromium for tests."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

# Chromium has no network here but the machine itself; without these it looks for its maker's hosts at every start.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)


@contextlib.contextmanager
def chromium(profile: Path, width: int = 1180, height: int = 860) -> Iterator[webdriver.Chrome]:
    """Run a headless Chromium with an empty profile; skip the test where there is none.

    ``profile``: an empty directory for the browser's files; ``width``, ``height``: of the window, in pixels.
    """
    browser, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver_program is None:
        pytest.skip("needs chromium and chromedriver on PATH (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_program))
    try:
        yield driver
    finally:
        driver.quit()


def requested_hosts(driver: webdriver.Chrome) -> set[str]:
    """Return every host the pages asked for something since the last call."""
    hosts = set()
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = urlsplit(message["params"]["request"]["url"])
            if url.scheme in ("http", "https", "ws", "wss"):
                hosts.add(url.hostname or "")
    return hosts
