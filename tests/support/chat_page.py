"""The chat page as its reader uses it: what is on it, and its buttons."""

import contextlib
from collections.abc import Callable

from selenium import webdriver
from selenium.common.exceptions import (
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import eventually_sync

_TAKEN_SECONDS = 15.0  # within which a question leaves its field
_BUTTONS = {
    "send": "#question .submit-button",
    "stop": "#question .stop-button",
    "retry": '#chat button[aria-label="Retry"]',
}


class ChatPage:
    """A chat page open in a browser window of its own.

    ``driver``: the browser; a new tab is opened in it. ``url``: of the page.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self._driver = driver
        driver.switch_to.new_window("tab")
        self._window = driver.current_window_handle
        driver.get(url)
        self.wait(lambda: self._shown(_BUTTONS["send"]))
        self.wait(lambda: self.status != "connecting")

    def begin_again(self) -> None:
        """Show a new chat and forget all others, as when the page was opened, in a third of the time."""
        self.focus()

        def is_idle() -> bool:
            for button in self._driver.find_elements(By.CSS_SELECTOR, _BUTTONS["stop"]):
                self.click(button)
            return not self.is_generating

        self.wait(is_idle)
        self._driver.execute_script("localStorage.clear(); chats.leave()")
        self.press("clear")
        self.wait(lambda: not self.questions)

    def focus(self) -> None:
        """Make this page the one the browser shows."""
        self._driver.switch_to.window(self._window)
        self._driver.execute_cdp_cmd("Page.bringToFront", {})  # pages in the background draw little

    def close(self) -> None:
        """Close its tab."""
        self.focus()
        self._driver.close()
        self._driver.switch_to.window(self._driver.window_handles[0])

    def wait(self, condition: Callable[[], bool], timeout: float = 180.0) -> None:
        """Wait until something holds; parts of the page may be redrawn meanwhile."""

        def holds() -> bool:
            try:
                return condition()
            except (NoSuchElementException, StaleElementReferenceException):
                return False

        eventually_sync(holds, timeout)

    def _one(self, selector: str) -> WebElement:
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def _texts(self, selector: str) -> list[str]:
        return [element.text for element in self._driver.find_elements(By.CSS_SELECTOR, selector)]

    def _shown(self, selector: str) -> bool:
        return self._one(selector).is_displayed()

    @property
    def title(self) -> str:
        return self._one("#header h1").text

    @property
    def models(self) -> list[str]:
        """Models to choose from; empty where there is no choice."""
        if not any(field.is_displayed() for field in self._driver.find_elements(By.CSS_SELECTOR, "#model input")):
            return []
        self._one("#model input").click()
        self.wait(lambda: bool(self._texts('#model [role="option"]')))
        names = [text.lstrip("✓ ").strip() for text in self._texts('#model [role="option"]')]
        self._one("#model input").send_keys(Keys.ESCAPE)
        return names

    def choose_model(self, name: str) -> None:
        """Choose what is to answer."""
        self.wait(lambda: self._shown("#model input"))
        self.type(name + Keys.ENTER, into="#model input")

    @property
    def status(self) -> str:
        return self._one("#header .status").text

    @property
    def questions(self) -> list[str]:
        return self._texts('#chat [data-testid="user"]')

    @property
    def responses(self) -> list[str]:
        """Texts on the model's side: responses, and the line under each."""
        return self._texts('#chat [data-testid="bot"]')

    @property
    def is_generating(self) -> bool:
        """Whether the Stop button is offered."""
        return any(button.is_displayed() for button in self._driver.find_elements(By.CSS_SELECTOR, _BUTTONS["stop"]))

    def type(self, text: str, into: str = "#question textarea") -> None:
        """Type into a field, in place of what it holds."""
        field = self._one(into)
        self._select(field)
        field.send_keys(text)

    def _select(self, field: WebElement) -> None:
        """Select what a field holds, as soon as it can be: what slides or unfolds may have no size at first."""

        def selects() -> bool:
            try:
                field.send_keys(Keys.CONTROL + "a")
            except ElementNotInteractableException:
                return False
            return True

        self.wait(selects)

    def paste(self, text: str) -> None:
        """Put a text into the question's field at once, as the clipboard does."""
        self._one("#question textarea").click()
        self._driver.execute_cdp_cmd("Input.insertText", {"text": text})

    def send(self, question: str) -> None:
        """Type a question and send it with Enter, again what a busy page has lost of either."""

        def is_typed() -> bool:
            if self._question == question:
                return True
            self.type(question)
            return False

        self.wait(is_typed)
        self._one("#question textarea").send_keys(Keys.ENTER)
        with contextlib.suppress(AssertionError):
            self.wait(lambda: self._question != question, _TAKEN_SECONDS)
            return
        self._one("#question textarea").send_keys(Keys.ENTER)

    @property
    def _question(self) -> str:
        return self._one("#question textarea").get_attribute("value") or ""

    def wait_for_response(self, count: int, timeout: float = 180.0) -> None:
        """Wait until this many questions stand there and nothing runs any more."""

        def is_answered() -> bool:
            return len(self.questions) == count and self._shown(_BUTTONS["send"]) and not self.is_generating

        self.wait(is_answered, timeout)

    def press(self, name: str) -> None:
        """Press a button (``send``, ``stop``, ``retry``, or an id) as soon as it can be pressed."""
        selector = _BUTTONS.get(name, f"#{name}")
        self.wait(lambda: self._shown(selector) and self._one(selector).is_enabled())
        self._one(selector).click()

    def open_settings(self) -> None:
        """Unfold the panel of settings, and all of its parts."""
        if "open" not in (self._one("#settings").get_attribute("class") or "").split():
            self._one("#settings .toggle-button").click()
        self.wait(self._unfold_settings)
        self.wait(lambda: self._shown("#max-new-tokens input[type=number]"))

    def _unfold_settings(self) -> bool:
        """Press what is folded, again where the page was not ready for it; whether nothing was."""
        folded = self._driver.find_elements(By.CSS_SELECTOR, "#settings button.label-wrap:not(.open)")
        for fold in folded:
            self.click(fold)
        return not folded

    @property
    def conversations(self) -> list[str]:
        """Titles in the list, the latest first."""
        return [title.get_attribute("title") or "" for title in self._list(".title")]

    def open_list(self) -> None:
        """Unfold the list of conversations."""
        if "open" not in (self._one("#conversations").get_attribute("class") or "").split():
            self._one("#conversations .toggle-button").click()
        self.wait(lambda: self._shown("#chats"))

    def close_list(self) -> None:
        """Fold the list of conversations."""
        self._fold("#conversations")

    def close_settings(self) -> None:
        """Fold the panel of settings."""
        self._fold("#settings")

    def _fold(self, side: str) -> None:
        if "open" in (self._one(side).get_attribute("class") or "").split():
            self._one(f"{side} .toggle-button").click()
            self.wait(lambda: self.is_still)

    @property
    def is_still(self) -> bool:
        """Whether nothing slides or fades: while a side does, what is alongside may be too narrow to be typed into."""
        ends = "({ playState, effect }) => playState === 'running' && effect.getComputedTiming().endTime < Infinity"
        return not self._driver.execute_script(f"return document.getAnimations().some({ends})")

    def in_list(self, number: int, part: str = "title") -> WebElement:
        """Return a part (``title``, ``rename``, ``delete``) of an entry of the list."""
        return self._list(f"li .{part}")[number]

    def _list(self, selector: str) -> list[WebElement]:
        return self._driver.find_elements(By.CSS_SELECTOR, f"#chats {selector}")

    def click(self, element: WebElement) -> None:
        """Click on something, whether or not the mouse is over it."""
        self._driver.execute_script("arguments[0].click()", element)

    def rewrite(self, number: int, question: str) -> None:
        """Put a question in other words, and send it again."""
        self.click(self._driver.find_elements(By.CSS_SELECTOR, '#chat button[aria-label="Edit"]')[number])
        self.wait(lambda: self._shown("#chat .edit-textarea"))
        self.type(question, into="#chat .edit-textarea")
        self.click(self._one('#chat button[aria-label="Submit"]'))

    def set(self, **values: object) -> None:
        """Write values into the settings, by name."""
        for name, value in values.items():
            self.wait(lambda name=name, value=value: self._writes(name, f"{value}"))

    def _writes(self, name: str, text: str) -> bool:
        """Write into a setting, and return whether it holds the text: a busy page may redraw it between two keys."""
        part = self._one(f"#{name.replace('_', '-')}")
        field = part.find_element(By.CSS_SELECTOR, "input[type=number], textarea, input[type=text]")
        self._driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
        self._select(field)
        field.send_keys((text or Keys.DELETE) + Keys.TAB)
        return field.get_attribute("value") == text

    def choose(self, name: str, choice: str) -> None:
        """Choose one of a few in the settings, as a preset."""
        label = self._one(f'#{name} input[value="{choice}"]')
        self._driver.execute_script("arguments[0].click()", label)

    def value(self, name: str) -> str:
        """Return the value of a number of the settings."""
        return self._one(f"#{name.replace('_', '-')} input[type=number]").get_attribute("value") or ""

    def chosen(self, name: str) -> str | None:
        """Return which of a few is chosen."""
        found = self._driver.find_elements(By.CSS_SELECTOR, f"#{name} input:checked")
        return found[0].get_attribute("value") if found else None
