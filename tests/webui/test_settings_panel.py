"""The panel of settings in a real Chromium."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from openai_gateway.settings import Settings
from tests.support.chat_page import ChatPage
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_gateway, running_page

pytestmark = pytest.mark.browser


@pytest.fixture
def page(page: ChatPage) -> ChatPage:
    page.open_settings()
    page.choose("preset", "Default")
    return page


def test_settings_reach_the_engine(page: ChatPage, fake_triton: FakeTriton) -> None:
    reported = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "max_new_tokens": 33}
    reported |= {"repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    page.set(**reported, seed=11, system="Answer in verse.", stop_words="END", json_schema='{"type": "object"}')
    page.choose("thinking", "off")
    page.send("Hello")
    page.wait_for_response(1)
    inputs = fake_triton.requests[0].inputs
    assert {name: inputs[name] for name in reported} == pytest.approx(reported)
    assert (inputs["random_seed"], inputs["stop_words"]) == (11, ["END"])
    _, form = json.loads(inputs["response_format"])["structural_tag"]["elements"]  # reasoning, then the response
    assert form == {"type": "json_schema", "json_schema": {"type": "object"}}
    sent = json.loads(inputs["messages"])
    assert sent["messages"][0] == {"role": "system", "content": "Answer in verse."}
    assert sent["chat_template_kwargs"]["enable_thinking"] is False


def test_what_is_no_number_is_marked(page: ChatPage, driver: webdriver.Chrome) -> None:
    for text, is_wrong in (("-5x", "true"), ("7", "false")):
        page.set(seed=text)
        field = driver.find_element(By.CSS_SELECTOR, "#seed :is(input, textarea)")
        page.wait(lambda field=field, is_wrong=is_wrong: field.get_attribute("aria-invalid") == is_wrong)


def test_a_preset_sets_the_numbers_until_one_is_changed(page: ChatPage) -> None:
    assert page.chosen("preset") == "Default"
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


def test_a_new_chat_has_the_settings_that_the_model_recommends(
    driver: webdriver.Chrome, fake_triton: FakeTriton, tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer" / "generation_config.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"do_sample": True, "temperature": 0.25, "top_p": 0.9, "repetition_penalty": 1.1}))
    settings = Settings(triton_address=fake_triton.address, engine_dir=tmp_path)
    with running_gateway(settings) as server, running_page(server) as url:
        page = ChatPage(driver, url)
        page.open_settings()
        page.wait(lambda: (page.value("temperature"), page.value("top_p"), page.value("top_k")) == ("0.25", "0.9", "0"))
        page.send("Hello")
        page.wait_for_response(1)
        sent = fake_triton.requests[-1].inputs
        expected = {"temperature": 0.25, "top_p": 0.9, "top_k": 0, "repetition_penalty": 1.1}
        assert {name: sent[name] for name in expected} == pytest.approx(expected)
        page.choose("preset", "Precise")
        page.wait(lambda: page.value("temperature") == "0.2")
        page.choose("preset", "Default")
        page.wait(lambda: page.value("repetition_penalty") == "1.1")
        page.close()
