"""The chat page in a real Chromium, against a scripted Triton."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.support.chat_page import ChatPage
from tests.support.fake_triton import FakeTriton, Script
from tests.support.images import file_of, make_image

pytestmark = pytest.mark.browser

REPLY = "The capital of France is Paris."


@pytest.fixture
def open_page(driver: webdriver.Chrome, page_url: str) -> Iterator[Callable[[], ChatPage]]:
    opened: list[ChatPage] = []

    def open_one() -> ChatPage:
        opened.append(ChatPage(driver, page_url))
        return opened[-1]

    yield open_one
    for page in opened:
        page.close()


def messages(fake: FakeTriton, request: int = -1) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in json.loads(fake.requests[request].inputs["messages"])]


def test_question_is_answered_with_token_count_and_speed_below(page: ChatPage) -> None:
    page.send("What is the capital of France?")
    page.wait_for_response(1)
    assert page.questions == ["What is the capital of France?"]
    response, summary = page.responses
    assert response == REPLY
    assert "6 tokens" in summary
    assert "tokens/s" in summary


def test_stop_cancels_in_the_engine_and_keeps_what_was_said(page: ChatPage, fake_triton: FakeTriton) -> None:
    fake_triton.script = Script(hold_after=2)
    page.send("Hello")
    page.wait(lambda: page.responses == ["The capital of France"])
    page.press("stop")
    page.wait_for_response(1)
    assert fake_triton.stops.get(timeout=180) == fake_triton.requests[0].id
    assert fake_triton.requests[0].cancelled.wait(180)
    response, summary = page.responses
    assert response == "The capital of France"
    assert summary.endswith("stopped")


def test_stop_works_before_the_first_token(page: ChatPage, fake_triton: FakeTriton) -> None:
    fake_triton.script = Script(hold_after=0)
    page.send("Hello")
    page.wait(lambda: len(fake_triton.requests) == 1)
    page.press("stop")
    page.wait_for_response(1)
    assert fake_triton.requests[0].cancelled.wait(180)


def test_closed_tab_cancels_in_the_engine(
    open_page: Callable[[], ChatPage],
    driver: webdriver.Chrome,
    page_url: str,
    fake_triton: FakeTriton,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_triton.script = Script(hold_after=1)
    leaving = ChatPage(driver, page_url)
    leaving.send("Hello")
    leaving.wait(lambda: leaving.responses == ["The capital"])
    monkeypatch.setattr("webui.page.LEFT_SECONDS", 0.5)  # now that the page follows
    leaving.close()
    assert fake_triton.stops.get(timeout=180) == fake_triton.requests[0].id


def test_images_go_with_the_next_question_and_stay_in_the_conversation(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("one.png", "two.png")]
    for seed, file in enumerate(files):
        file.write_bytes(file_of(make_image(40, 30, seed)))
    driver.find_element(By.CSS_SELECTOR, "#question input[type=file]").send_keys("\n".join(map(str, files)))
    page.wait(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#question img")) == 2)
    assert driver.find_elements(By.CSS_SELECTOR, "#question .upload-button")
    page.send("What is this?")
    page.wait(lambda: page.responses[:1] == [REPLY] and not page.is_generating)
    assert fake_triton.requests[-1].model == "ensemble_vision"
    (message,) = json.loads(fake_triton.requests[-1].inputs["messages"])
    sent = [part["image_url"]["url"].partition(",")[2] for part in message["content"] if part["type"] == "image_url"]
    assert [base64.b64decode(url) for url in sent] == [file.read_bytes() for file in files]
    assert message["content"][-1] == {"type": "text", "text": "What is this?"}
    page.wait(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#chat img")) == 2)
    page.send("And now?")
    page.wait(lambda: len(fake_triton.requests) == 2 and not page.is_generating)
    first, _, last = json.loads(fake_triton.requests[-1].inputs["messages"])
    assert first == message
    assert last == {"role": "user", "content": "And now?"}


# Hands the page a file as a browser does when its user pastes or drops one.
_HAND_OVER = """
const [target, kind, content] = arguments;
const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], "shown.png", {type: "image/png"}));
const how = {bubbles: true, cancelable: true};
const pasted = () => new ClipboardEvent(kind, {clipboardData: data, ...how});
const dropped = () => new DragEvent(kind, {dataTransfer: data, ...how});
target.dispatchEvent(kind === "paste" ? pasted() : dropped());
"""


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_images_may_be_pasted_and_dropped(
    kind: str, page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    content = file_of(make_image(40, 30))
    field = driver.find_element(By.CSS_SELECTOR, "#question textarea")
    driver.execute_script(_HAND_OVER, field, kind, base64.b64encode(content).decode())
    page.wait(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#question img")) == 1)
    page.send("What is this?")
    page.wait(lambda: page.responses[:1] == [REPLY] and not page.is_generating)
    (message,) = json.loads(fake_triton.requests[-1].inputs["messages"])
    assert base64.b64decode(message["content"][0]["image_url"]["url"].partition(",")[2]) == content
    assert driver.find_elements(By.CSS_SELECTOR, "#question img") == []


def test_a_long_text_that_is_pasted_is_the_question(page: ChatPage, fake_triton: FakeTriton) -> None:
    text = "All of it. " * 400
    page.paste(text)
    page.press("send")
    page.wait_for_response(1)
    assert messages(fake_triton) == [("user", text.strip())]


def test_clear_starts_a_new_conversation(page: ChatPage, fake_triton: FakeTriton) -> None:
    page.send("Before")
    page.wait_for_response(1)
    page.press("clear")
    page.wait(lambda: page.questions == [])
    page.send("After")
    page.wait_for_response(1)
    assert messages(fake_triton) == [("user", "After")]


def test_every_browser_has_its_own_history(
    page: ChatPage, open_page: Callable[[], ChatPage], fake_triton: FakeTriton
) -> None:
    fake_triton.script = lambda received: Script(texts=[f"seen {len(json.loads(received.inputs['messages']))}"])
    for tab, question in ((page, "from one"), (open_page(), "from the other")):
        tab.focus()
        tab.send(question)
        tab.wait_for_response(1)
        assert tab.questions == [question]
        assert tab.responses[0] == "seen 1"


def test_two_browsers_are_answered_at_once(
    page: ChatPage, open_page: Callable[[], ChatPage], fake_triton: FakeTriton
) -> None:
    fake_triton.script = Script(hold_after=1)
    for tab in (page, open_page()):
        tab.focus()
        tab.send("Hello")
        tab.wait(lambda tab=tab: tab.responses == ["The capital"])
    assert len(fake_triton.requests) == 2


def test_server_away_is_said_and_recovered_from_without_reload(
    open_page: Callable[[], ChatPage], fake_triton: FakeTriton
) -> None:
    page, other = open_page(), open_page()
    for tab in (page, other) * 4 + (page,):  # in the background a page does not look
        tab.focus()
    fake_triton.stop()
    try:
        page.send("Hello")
        page.wait_for_response(1)
        assert page.responses[0].startswith("The model server cannot answer now; press Retry in a while")
        page.wait(lambda: page.status == "The model server is away")
    finally:
        fake_triton.start()
    fake_triton.reset()
    page.wait(lambda: page.status == "ready")
    page.press("retry")
    page.wait(lambda: page.responses[:1] == [REPLY])


def test_an_adapter_is_chosen_where_there_are_some(open_page: Callable[[], ChatPage], fake_triton: FakeTriton) -> None:
    page = open_page()
    assert page.models == []
    fake_triton.adapters |= {"pirate": "", "secret": '["digest of a key"]'}
    page.wait(lambda: page.models == ["fake-model", "pirate"])  # the page looks every few seconds
    page.send("Who are you?")
    page.wait_for_response(1)
    assert "lora_name" not in fake_triton.requests[-1].inputs
    page.choose_model("pirate")
    page.send("And now?")
    page.wait_for_response(2)
    assert fake_triton.requests[-1].inputs["lora_name"] == "pirate"
