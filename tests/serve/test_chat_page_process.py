"""The chat page that ``lmdeploy serve api_server --webui`` starts."""

import os
import signal
import threading

import pytest

from lmdeploy.cli import chat_page
from lmdeploy.cli.chat_page import ChatPage
from lmdeploy.serve.ports import free_ports


def test_a_page_that_cannot_start_ends_the_command_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    signals: list[tuple[int, int]] = []

    def record(pid: int, signum: int) -> None:
        signals.append((pid, signum))
        ended.set()

    monkeypatch.setattr(chat_page.os, "kill", record)
    page = ChatPage(
        "localhost:1", "", "no address", free_ports(1)[0], ["key"], on_ready=lambda: pytest.fail("it is not ready")
    )
    page.start()
    assert ended.wait(180)
    assert signals == [(os.getpid(), signal.SIGTERM)]
    assert "the chat page did not start" in page.failure
    assert "no address" in page.failure
    page.stop()


def test_a_page_that_is_not_wanted_is_not_started() -> None:
    page = ChatPage("localhost:1", "", "localhost", free_ports(1)[0], (), on_ready=lambda: None)
    page.stop()
    assert page.failure == ""
