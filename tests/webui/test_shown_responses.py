"""How responses of a server with OpenAI's API look in a real Chromium."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib.resources import files

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from openai_gateway.settings import Settings
from tests.support.browser import requested_hosts
from tests.support.chat_page import ChatPage
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway, running_page

pytestmark = pytest.mark.browser

TEXT = r"""A formula $e^{i\pi}$ and another \(a^2\):

| Name | Value |
|---|---|
| alpha | 1.5 |

| One | Another |
|---|---|
| internationalizationofeverything | counterrevolutionarythoughts |

```python
very_long_name = "a line that is wider than any telephone that was ever held in a hand, and wider still"
```
"""
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def page_url(fake_triton_server: FakeTriton) -> Iterator[str]:
    settings = Settings(triton_address=fake_triton_server.address, reasoning_parser="qwen3")
    with running_gateway(settings) as address, running_page(address) as url:
        yield url


@pytest.fixture
def resize(driver: webdriver.Chrome) -> Iterator[Callable[[int, int], None]]:
    def resize(width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    yield resize
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def shown(driver: webdriver.Chrome, selector: str) -> list[str]:
    return [element.text for element in driver.find_elements(By.CSS_SELECTOR, selector) if element.is_displayed()]


def test_reasoning_is_open_while_it_comes_and_folded_then(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    texts = ["<think>", "Let me look.", "</think>", "Yes."]
    fake_triton.script = Script(texts=texts, hold_after=2, resume=True, input_token_len=40, cached_token_len=32)
    page.send("Well?")
    page.wait(lambda: "Let me look." in " ".join(page.responses))
    fake_triton.release.set()
    page.wait_for_response(1)
    page.wait(lambda: page.responses[1:2] == ["Yes."])
    assert page.responses[0].startswith("Thought for")
    assert "prompt 40, 32 cached" in page.responses[2]
    driver.find_element(By.CSS_SELECTOR, "#chat .thought-group .title").click()
    page.wait(lambda: "Let me look." in " ".join(page.responses))
    page.send("And?")
    page.wait_for_response(2)
    sent = json.loads(fake_triton.requests[-1].inputs["messages"])
    assert [message["content"] for message in sent] == ["Well?", "Yes.", "And?"]


def test_a_call_is_shown_and_answered_by_what_is_said_next(page: ChatPage, fake_triton: FakeTriton) -> None:
    fake_triton.script = Script(texts=['<tool_call>\n{"name": "look", ', '"arguments": {"at": "sea"}}\n</tool_call>'])
    page.open_settings()
    page.set(tools=json.dumps(TOOLS))
    page.send("Well?")
    page.wait_for_response(1)
    page.wait(lambda: "Calls look" in " ".join(page.responses))
    fake_triton.script = Script()
    page.send("Waves")
    page.wait_for_response(2)
    *_, call, result = json.loads(fake_triton.requests[-1].inputs["messages"])
    assert call["tool_calls"][0]["function"]["name"] == "look"
    assert (result["role"], result["content"]) == ("tool", "Waves")
    page.set(tools="")


def test_responses_stand_alongside_each_other_and_one_is_taken(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    fake_triton.script = Script(texts=["The **first**.\n```\ncut"])
    page.send("Well?")
    page.wait_for_response(1)
    fake_triton.script = Script(texts=["The second.\n\n- a\n- b"])
    page.press("retry")
    page.wait(lambda: "second" in " ".join(page.responses) and not page.is_generating)
    assert "2 of 2" in page.responses[1]
    assert json.loads(fake_triton.requests[-1].inputs["messages"]) == [{"role": "user", "content": "Well?"}]
    for place, shown_there in ((".by-1", "first"), (".by1", "second")):
        driver.find_element(By.CSS_SELECTOR, f"#chat .place {place}").click()
        page.wait(lambda text=shown_there: text in page.responses[0])
    driver.find_element(By.CSS_SELECTOR, "#chat .place .by0").click()
    page.wait(lambda: len(shown(driver, "#chat .alongside .column")) == 2)
    first, second = driver.find_elements(By.CSS_SELECTOR, "#chat .alongside .column")
    assert (shown(driver, "#chat .alongside strong"), shown(driver, "#chat .alongside li")) == (["first"], ["a", "b"])
    assert first.location["y"] == second.location["y"]
    assert first.location["x"] + first.size["width"] <= second.location["x"]
    assert shown(driver, "#chat .alongside .taken")[0].startswith("Response 2")
    first.find_element(By.CSS_SELECTOR, "button").click()
    page.wait(lambda: shown(driver, "#chat .alongside .taken")[0].startswith("Response 1\nThe first."))
    driver.find_element(By.CSS_SELECTOR, "#chat small .by0").click()
    page.wait(lambda: not shown(driver, "#chat .alongside") and page.responses[0].startswith("The first."))
    page.send("And?")
    page.wait_for_response(2)
    sent = json.loads(fake_triton.requests[-1].inputs["messages"])
    assert [message["content"] for message in sent] == ["Well?", "The **first**.\n```\ncut", "And?"]


def test_formulas_tables_and_code_are_set_and_nothing_is_fetched(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    fake_triton.script = Script(texts=[TEXT])
    page.send("Show me")
    page.wait_for_response(1)
    page.wait(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#chat .katex")) == 2)
    assert shown(driver, "#chat td")[:2] == ["alpha", "1.5"]
    assert len(driver.find_elements(By.CSS_SELECTOR, "#chat .copy_code_button")) == 1
    assert requested_hosts(driver) <= {"127.0.0.1"}


# Markup for a page of the model's, in the places where parsers of Markdown differ about code.
MARKUP = """
<div style="position: fixed; inset: 0; z-index: 9999" id="a"><form action="/login"><input type="password"></form></div>

$$<form id="b">$$ \\(<b style="color: red">x</b>\\) `a` <https://x/style=position:fixed>

[a]: u "
```
"
<form id="c"><input>
```

```mermaid
flowchart LR
    a["<form id='d' style='position: fixed'><input type='password'></form>"]
```

```html
<em id="e">kept</em>
```
"""
_MADE = """
const made = [...document.querySelectorAll("#chat [data-testid=bot] *")].filter((e) => !e.closest(".katex"));
const parts = "form, input, textarea, select, style, iframe, object, embed, video, audio, [id], [style], .mermaid";
return made.filter((e) => e.matches(parts)).map((e) => e.outerHTML);
"""


def test_an_answer_makes_nothing_but_what_markdown_does(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    fake_triton.script = Script(texts=[MARKUP])
    page.send("Hello")
    page.wait_for_response(1)
    assert driver.execute_script(_MADE) == []
    for tag in ("<form action=", '<form id="c"><input>', "<form id='d'", '<em id="e">kept</em>', "<https://x/style"):
        assert tag in page.responses[0]
    links = [link.get_attribute("href") for link in driver.find_elements(By.CSS_SELECTOR, "#chat .prose a")]
    assert links == ["https://x/style=position:fixed"]
    assert len(driver.find_elements(By.CSS_SELECTOR, "#chat .language-html .token.tag")) >= 2


def test_dollars_and_boxes_are_read_as_on_github(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton
) -> None:
    shown_as = {
        "It costs $5 and then $10.": "It costs $5 and then $10.",
        "Of $HOME/$USER and $PATH.": "Of $HOME/$USER and $PATH.",
        "- [x] done\n- [ ] open": "☑ done\n☐ open",
        "Keys <Enter> and <b>bold</b>.": "Keys <Enter> and <b>bold</b>.",
        '```sh\necho "$A:$" # - [x] <b>\n- [x] $a$\n```': 'echo "$A:$" # - [x] <b>\n- [x] $a$',
    }
    fake_triton.script = Script(texts=["\n\n".join([*shown_as, "It is $2^n$, or \\[a < b\\]."])])
    page.send("Hello")
    page.wait_for_response(1)
    for text in shown_as.values():
        assert text in page.responses[0]
    assert [element.text for element in driver.find_elements(By.CSS_SELECTOR, "#chat .katex-display")] != []
    assert len(driver.find_elements(By.CSS_SELECTOR, "#chat .katex")) == 2


def test_a_question_is_shown_edited_and_copied_as_it_was_written(page: ChatPage, driver: webdriver.Chrome) -> None:
    text = "<img src=x><script>1</script> costs $5 and $6\n\n# *no* heading\n    - [x] `code` &amp; \\(x\\) www.a.b |"
    page.paste(text)
    page.press("send")
    page.wait_for_response(1)
    assert page.questions == [text]
    for kind in ("img", "script", ".katex", "a", "em", "code"):
        assert driver.find_elements(By.CSS_SELECTOR, f"#chat [data-testid=user] {kind}") == []
    allowed = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    driver.execute_cdp_cmd("Browser.grantPermissions", allowed)
    page.click(driver.find_element(By.CSS_SELECTOR, "#chat .message-buttons-right button[aria-label*=opy]"))
    read = "const done = arguments[0]; navigator.clipboard.readText().then(done)"
    page.wait(lambda: driver.execute_async_script(read) == text)
    page.click(driver.find_element(By.CSS_SELECTOR, '#chat button[aria-label="Edit"]'))
    page.wait(lambda: driver.find_element(By.CSS_SELECTOR, "#chat .edit-textarea").get_attribute("value") == text)
    page.click(driver.find_element(By.CSS_SELECTOR, '#chat button[aria-label="Cancel"]'))
    page.wait(lambda: page.questions == [text])


def test_who_reads_further_up_is_left_there(page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton) -> None:
    lines = [f"Line {number}\n\n" for number in range(80)]
    fake_triton.script = Script(texts=["".join(lines), "More\n\n" * 20, "and the end."], hold_after=1, resume=True)
    page.send("Hello")
    left = (
        "const e = document.querySelector('#chat .bubble-wrap'); return e.scrollHeight - e.scrollTop - e.clientHeight"
    )
    page.wait(lambda: "Line 79" in " ".join(page.responses) and driver.execute_script(left) < 5)
    driver.execute_script("document.querySelector('#chat .bubble-wrap').scrollTop -= 60")
    fake_triton.release.set()
    page.wait_for_response(1)
    time.sleep(0.5)  # Gradio scrolled 0.3 seconds later
    assert driver.execute_script(left) > 200
    fake_triton.script = Script()
    page.send("And?")
    page.wait_for_response(2)
    page.wait(lambda: driver.execute_script(left) < 5)


def test_a_telephone_scrolls_in_one_direction(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton, resize: Callable[[int, int], None]
) -> None:
    fake_triton.script = Script(texts=[TEXT])
    page.close_list()
    resize(390, 844)
    page.send("Show me " + "a-very-long-word" * 20)
    page.wait_for_response(1)
    page.wait(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#chat .katex")) == 2)
    overflowing = "return [...document.querySelectorAll('html, body, #chat .bubble-wrap')].map(e => e.scrollWidth)"
    assert max(driver.execute_script(overflowing)) <= 390
    cells = "return [...document.querySelectorAll('#chat td')].map(e => e.clientHeight)"
    assert max(driver.execute_script(cells)) < 50  # no word is broken
    table = "const e = document.querySelector('#chat table:last-of-type')"
    assert driver.execute_script(f"{table}; return e.scrollWidth > e.clientWidth")
    covered = "const [b, c] = ['button', 'code'].map(e => document.querySelector(`#chat .code_wrap ${e}`)"
    assert driver.execute_script(f"{covered}.getBoundingClientRect()); return b.bottom <= c.top + 1")


@pytest.mark.parametrize("width", [1180, 390])
def test_axe_finds_nothing_serious(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton, resize: Callable[[int, int], None], width: int
) -> None:
    fake_triton.script = Script(texts=["<think>Well.</think>", TEXT])
    resize(width, 860)
    page.close_list()
    page.send("Hello")
    page.wait_for_response(1)
    driver.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    for step in [lambda: None, page.open_list, page.close_list, page.open_settings, page.close_settings]:
        step()
        page.wait(lambda: page.is_still)
        assert driver.execute_async_script(_SERIOUS) == []


_SERIOUS = """
const isSerious = ({ impact }) => impact === "serious" || impact === "critical";
const said = ({ id, nodes }) => [id, nodes.map(({ html, failureSummary }) => [html.slice(0, 300), failureSummary])];
axe.run().then(({ violations }) => arguments[0](violations.filter(isSerious).map(said)));
"""


@pytest.mark.parametrize("is_dark", [False, True])
def test_everybody_can_read_and_press_what_is_shown(
    page: ChatPage, driver: webdriver.Chrome, fake_triton: FakeTriton, is_dark: bool
) -> None:
    page.close_list()
    page.close_settings()
    assert driver.execute_script(_FOLDED) == [["false", True], ["false", True]]
    fake_triton.script = Script(texts=["<think>Well.</think>Yes: `a`\n\n```python\n", CODE, "\n```"])
    driver.execute_script("document.body.classList.toggle('dark', arguments[0])", is_dark)
    try:
        page.send("Hello")
        page.wait_for_response(1)
        assert driver.find_element(By.CSS_SELECTOR, ".thought-group .title").get_attribute("aria-expanded") == "false"
        page.open_list()
        page.open_settings()
        page.wait(lambda: driver.execute_script(_FOLDED) == [["true", False], ["true", False]])
        folds = driver.find_elements(By.CSS_SELECTOR, "#settings .label-wrap")
        assert {fold.get_attribute("aria-expanded") for fold in folds} == {"true"}
        page.wait(lambda: page.is_still)
        faint = {text: colours for text, *colours in driver.execute_script(_TEXTS) if contrast(*colours) < 4.5}
        assert not faint, faint  # WCAG 2.1, 1.4.3
        assert driver.execute_script(_SMALL) == []  # WCAG 2.2, 2.5.8
    finally:
        driver.execute_script("document.body.classList.remove('dark')")


CODE = "@a\nclass A(int):\n    # one\n    b = f'two {3!r}' and True\n    def c(self): return len(b) + 4.5"
_FOLDED = """
return [...document.querySelectorAll(".sidebar")].map((side) => [
  side.querySelector(".toggle-button").getAttribute("aria-expanded"), side.querySelector(".sidebar-content").inert,
]);
"""
# Controls to press, but for sliders, whose thumbs are larger, and radio buttons, which their labels are for.
_SMALL = """
const pressed = [...document.querySelectorAll("button, a, input:not([type=range], [type=radio]), [role=tab]")];
const isShown = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getBoundingClientRect().width > 0;
const isSmall = ({ width, height }) => width < 24 || height < 24;
return pressed.filter((e) => isShown(e) && isSmall(e.getBoundingClientRect())).map((e) => e.outerHTML.slice(0, 150));
"""
# Each text, its colour, and that of what is behind it, as numbers.
_TEXTS = """
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const behind = (e) => {
  const colour = e ? numbers(getComputedStyle(e).backgroundColor) : [255, 255, 255];
  return colour.length === 3 || colour[3] === 1 ? colour : behind(e.parentElement);
};
const found = [];
const nodes = document.createTreeWalker(document.querySelector(".gradio-container"), NodeFilter.SHOW_TEXT);
while (nodes.nextNode()) {
  const e = nodes.currentNode.parentElement, text = nodes.currentNode.data.trim();
  if (!text || e.closest("style, script, svg, .check, .copy-text")) continue;
  if (e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getBoundingClientRect().width > 1)
    found.push([text, numbers(getComputedStyle(e).color), behind(e)]);
}
for (const e of document.querySelectorAll("#question textarea, #settings :is(input, textarea)"))
  if (e.placeholder) found.push([e.placeholder, numbers(getComputedStyle(e, "::placeholder").color), behind(e)]);
return found;
"""


def contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast of two colours as WCAG 2.1 defines it."""

    def luminance(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour[:3])]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
