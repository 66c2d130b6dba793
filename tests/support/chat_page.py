"""The chat page as its reader uses it: what is on it, and its buttons."""

from collections.abc import Callable

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import eventually_sync


class ChatPage:
    """A chat page open in a browser window of its own.

    Parameters
    ----------
    driver
        The browser; a new tab is opened in it.
    url
        Of the page.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self._driver = driver
        driver.switch_to.new_window("tab")
        self._window = driver.current_window_handle
        driver.get(url)
        self.wait(lambda: self._shown("#send"))
        self.wait(lambda: self.status != "connecting")

    def focus(self) -> None:
        """Make this page the one the browser shows."""
        self._driver.switch_to.window(self._window)

    def close(self) -> None:
        """Close its tab."""
        self.focus()
        self._driver.close()
        self._driver.switch_to.window(self._driver.window_handles[0])

    def wait(self, condition: Callable[[], bool], timeout: float = 20.0) -> None:
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
        """What can be chosen to answer; empty where there is no choice."""
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
    def browser_title(self) -> str:
        return self._driver.title

    @property
    def status(self) -> str:
        return self._one("#header .status").text

    @property
    def questions(self) -> list[str]:
        return self._texts('#chat [data-testid="user"]')

    @property
    def answers(self) -> list[str]:
        """What stands on the model's side: answers, and the line under each."""
        return self._texts('#chat [data-testid="bot"]')

    @property
    def is_answering(self) -> bool:
        """Whether the Stop button is offered."""
        return any(button.is_displayed() for button in self._driver.find_elements(By.CSS_SELECTOR, "#stop"))

    def type(self, text: str, into: str = "#question textarea") -> None:
        """Type into a field, in place of what it holds."""
        field = self._one(into)
        field.send_keys(Keys.CONTROL + "a")
        field.send_keys(text)

    def paste(self, text: str) -> None:
        """Put a text into the question's field at once, as the clipboard does."""
        self._one("#question textarea").click()
        self._driver.execute_cdp_cmd("Input.insertText", {"text": text})

    def ask(self, question: str) -> None:
        """Type a question and send it with Enter."""
        self.type(question + Keys.ENTER)

    def wait_for_answer(self, count: int, timeout: float = 20.0) -> None:
        """Wait until so many questions stand there and nothing runs any more."""
        self.wait(lambda: len(self.questions) == count and self._shown("#send") and not self.is_answering, timeout)

    def press(self, name: str) -> None:
        """Press a button (``send``, ``stop``, ``retry``, ``clear``) as soon as it can be pressed."""
        self.wait(lambda: self._shown(f"#{name}") and self._one(f"#{name}").is_enabled())
        self._one(f"#{name}").click()
