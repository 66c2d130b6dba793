"""The panel of settings in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.chat_page import ChatPage
from tests.support.fake_triton import FakeTriton

pytestmark = pytest.mark.browser


@pytest.fixture
def page(driver: webdriver.Chrome, page_url: str, fake_triton: FakeTriton) -> Iterator[ChatPage]:
    opened = ChatPage(driver, page_url)
    opened.open_settings()
    yield opened
    opened.close()


def test_settings_reach_the_engine(page: ChatPage, fake_triton: FakeTriton) -> None:
    told = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "max_new_tokens": 33}
    told |= {"repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    page.set(**told, seed=11, system="Answer in verse.", stop_words="END", json_schema='{"type": "object"}')
    page.choose("thinking", "off")
    page.ask("Hello")
    page.wait_for_answer(1)
    inputs = fake_triton.requests[0].inputs
    assert {name: inputs[name] for name in told} == pytest.approx(told)
    assert (inputs["random_seed"], inputs["stop_words"]) == (11, ["END"])
    assert json.loads(inputs["response_format"])["json_schema"]["schema"] == {"type": "object"}
    sent = json.loads(inputs["messages"])
    assert sent["messages"][0] == {"role": "system", "content": "Answer in verse."}
    assert sent["chat_template_kwargs"]["enable_thinking"] is False


def test_a_preset_sets_the_numbers_until_one_is_changed(page: ChatPage) -> None:
    assert page.chosen("preset") == "Balanced"
    page.choose("preset", "Precise")
    page.wait(lambda: (page.value("temperature"), page.value("top_k")) == ("0.2", "20"))
    page.set(top_k=21)
    page.wait(lambda: page.chosen("preset") is None)


def test_a_preset_of_ones_own_outlives_the_page(page: ChatPage, driver: webdriver.Chrome, page_url: str) -> None:
    page.set(temperature=0.15)
    page.type("Dry", into="#preset-name input, #preset-name textarea")
    page.press("preset-keep")
    page.wait(lambda: page.chosen("preset") == "Dry")
    again = ChatPage(driver, page_url)
    again.open_settings()
    again.choose("preset", "Dry")
    again.wait(lambda: again.value("temperature") == "0.15")
    again.press("preset-drop")
    again.wait(lambda: again.chosen("preset") is None)
    again.close()
    page.focus()
