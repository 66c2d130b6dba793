"""Several conversations in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.chat_page import ChatPage
from tests.support.fake_triton import FakeTriton, Script

pytestmark = pytest.mark.browser

FIRST, OTHER = "The capital of France is Paris.", "Another one"


@pytest.fixture
def open_page(driver: webdriver.Chrome, page_url: str, fake_triton: FakeTriton) -> Iterator[Callable[[], ChatPage]]:
    opened: list[ChatPage] = []

    def open_one() -> ChatPage:
        page = ChatPage(driver, page_url)
        opened.append(page)
        page.open_list()
        return page

    yield open_one
    for page in opened:
        page.close()


@pytest.fixture
def page(page: ChatPage) -> ChatPage:
    page.open_list()
    return page


def test_conversations_are_listed_opened_and_outlive_the_page(page: ChatPage, driver: webdriver.Chrome) -> None:
    page.open_settings()
    page.set(system="Rhyme.", top_k=3)
    page.send("First")
    page.wait_for_response(1)
    page.press("clear")
    page.wait(lambda: page.questions == [])
    page.send("Second")
    page.wait_for_response(1)
    page.wait(lambda: page.conversations == ["Second", "First"])
    page.in_list(1).click()
    page.wait(lambda: page.questions == ["First"])
    assert page.responses[0] == FIRST
    driver.refresh()
    page.wait(lambda: page.questions == ["First"] and page.responses[0] == FIRST)
    page.open_settings()
    page.wait(lambda: page.value("top_k") == "3")
    assert driver.find_element(By.CSS_SELECTOR, "#system textarea").get_attribute("value") == "Rhyme."


def test_a_conversation_is_renamed_and_deleted(page: ChatPage, driver: webdriver.Chrome) -> None:
    page.send("First")
    page.wait_for_response(1)
    page.wait(lambda: page.conversations == ["First"])
    page.click(page.in_list(0, "rename"))
    driver.switch_to.active_element.send_keys(Keys.CONTROL + "a" + Keys.NULL + "Capitals" + Keys.ENTER)
    page.wait(lambda: page.conversations == ["Capitals"])
    page.send("More")
    page.wait_for_response(2)
    assert page.conversations == ["Capitals"]
    page.click(page.in_list(0, "delete"))
    assert page.conversations == ["Capitals"]  # asked once more
    page.click(page.in_list(0, "delete"))
    page.wait(lambda: page.conversations == [] and page.questions == [])


def test_open_pages_do_not_lose_each_others_conversations(open_page: Callable[[], ChatPage], page: ChatPage) -> None:
    other = open_page()
    for tab, question in ((page, "from one"), (other, "from the other"), (page, "again")):
        tab.focus()
        tab.send(question)
        tab.wait(lambda tab=tab, question=question: question in tab.questions and not tab.is_generating)
    page.wait(lambda: sorted(page.conversations) == ["from one", "from the other"])


def test_a_question_in_other_words_begins_a_branch(page: ChatPage, fake_triton: FakeTriton) -> None:
    for number, question in enumerate(("One", "Two"), 1):
        page.send(question)
        page.wait_for_response(number)
    page.rewrite(0, "Uno")
    page.wait_for_response(1)
    assert page.questions == ["Uno"]
    assert json.loads(fake_triton.requests[-1].inputs["messages"]) == [{"role": "user", "content": "Uno"}]
    page.wait(lambda: page.conversations == ["Uno", "One"])
    page.in_list(1).click()
    page.wait(lambda: page.questions == ["One", "Two"])
    page.rewrite(1, "Due")
    page.wait_for_response(2)
    assert page.questions == ["One", "Due"]
    page.wait(lambda: page.conversations == ["One (edited)", "Uno", "One"])


def test_a_response_goes_on_while_another_chat_is_shown_and_over_a_reload(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    fake_triton.script = Script(hold_after=2, resume=True)
    page.send("Hello")
    page.wait(lambda: page.responses == ["The capital of France"])
    page.press("clear")
    page.wait(lambda: page.questions == [] and page.conversations == ["Hello"] and not page.is_generating)
    page.in_list(0).click()
    page.wait(lambda: page.responses == ["The capital of France"] and page.is_generating)
    kept = "return localStorage.getItem('lmdeploy-chat:' + sessionStorage.getItem('lmdeploy-chat-open'))"
    page.wait(lambda: "The capital of France" in driver.execute_script(kept))
    driver.refresh()
    page.wait(lambda: page.responses == ["The capital of France"] and page.is_generating)
    fake_triton.release.set()
    page.wait_for_response(1)
    assert page.responses[0] == FIRST
    assert len(fake_triton.requests) == 1
    driver.refresh()
    page.wait(lambda: page.responses[:1] == [FIRST])


def test_a_response_that_ends_behind_another_chat_is_kept(page: ChatPage, fake_triton: FakeTriton) -> None:
    fake_triton.script = Script(hold_after=1, resume=True)
    page.send("Hello")
    page.wait(lambda: page.responses == ["The capital"])
    page.press("clear")
    page.wait(lambda: page.questions == [])
    fake_triton.release.set()
    fake_triton.script = Script(texts=[OTHER])
    page.send("And?")
    page.wait_for_response(1)
    page.wait(lambda: sorted(page.conversations) == ["And?", "Hello"])
    assert page.questions == ["And?"]
    page.in_list(page.conversations.index("Hello")).click()
    page.wait(lambda: page.responses[:1] == [FIRST])


def test_a_response_that_the_limit_cut_is_continued(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    fake_triton.script = Script(texts=["The capital", " of"], finish_reason="length")
    page.send("Hello")
    page.wait_for_response(1)
    fake_triton.script = Script(texts=[" France."])
    page.click(driver.find_element(By.CSS_SELECTOR, "#chat .by9999"))
    page.wait(lambda: page.responses[:1] == ["The capital of France."] and not page.is_generating)
    sent = json.loads(fake_triton.requests[-1].inputs["messages"])
    assert sent["messages"][-1] == {"role": "assistant", "content": "The capital of"}
    assert sent["chat_template_kwargs"] == {"continue_final_message": True, "add_generation_prompt": False}
    assert driver.find_elements(By.CSS_SELECTOR, "#chat .by9999") == []


def test_chats_are_found_by_what_was_said_in_them(page: ChatPage, driver: webdriver.Chrome) -> None:
    for question in ("First", "Second"):
        page.send(question)
        page.wait_for_response(1)
        page.press("clear")
        page.wait(lambda: page.questions == [])
    page.wait(lambda: page.conversations == ["Second", "First"])
    page.type("fIRs", into="#chats input[type=search]")
    page.wait(lambda: page.conversations == ["First"])
    page.type("capital of france", into="#chats input[type=search]")
    page.wait(lambda: page.conversations == ["Second", "First"])


def test_two_tabs_with_one_chat_lose_nothing_of_it(open_page: Callable[[], ChatPage], page: ChatPage) -> None:
    page.send("One")
    page.wait_for_response(1)
    other = open_page()
    other.in_list(0).click()
    other.wait(lambda: other.questions == ["One"])
    other.send("Two")
    other.wait_for_response(2)
    page.focus()
    page.send("Three")
    page.wait_for_response(3)
    assert page.questions == ["One", "Two", "Three"]
    other.focus()
    other.wait(lambda: other.questions == page.questions)


def test_escape_stops_and_shift_enter_begins_a_line(page: ChatPage, fake_triton: FakeTriton) -> None:
    fake_triton.script = Script(hold_after=1)
    page.type("One" + Keys.SHIFT + Keys.ENTER + Keys.NULL + "Two" + Keys.ENTER)
    page.wait(lambda: page.responses == ["The capital"])
    page.type(Keys.ESCAPE)
    page.wait(lambda: not page.is_generating and page.responses[1].endswith("stopped"))
    assert page.questions == ["One\nTwo"]


def test_what_is_exported_can_be_imported(page: ChatPage, driver: webdriver.Chrome, tmp_path: Path) -> None:
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.send("First of all")
    page.wait_for_response(1)
    page.press("export-json")
    page.press("export-markdown")
    file, document = tmp_path / "First-of-all.json", tmp_path / "First-of-all.md"
    page.wait(lambda: file.exists() and document.exists())
    assert f"## You\n\nFirst of all\n\n## Model\n\n{FIRST}" in document.read_text(encoding="utf-8")
    page.press("clear")
    page.wait(lambda: page.questions == [])
    telephone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", telephone)
    driver.find_element(By.CSS_SELECTOR, "#conversations input[type=file]").send_keys(str(file))
    page.wait(lambda: page.questions == ["First of all"] and page.responses[0] == FIRST)
    page.wait(lambda: driver.find_elements(By.CSS_SELECTOR, "#conversations.open") == [])  # the list covered it
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.wait(lambda: len(page.conversations) == 2)
