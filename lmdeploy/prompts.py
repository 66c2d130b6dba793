"""From a text or conversation to token ids: the one place that does it, offline and behind Triton."""

import logging
import threading
from typing import Any, NamedTuple

from lmdeploy.sessions import HeldSession
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.conversation import Message, rounds_of
from lmdeploy.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Prompt = str | list[Message]


class PreparedPrompt(NamedTuple):
    """Token ids for the engine, the strings that end its answer, and how often the user speaks in it."""

    ids: list[int]
    stop_words: list[str]
    rounds: int = 1


def as_messages(prompt: Prompt) -> list[Message]:
    """Return a prompt as OpenAI messages; a text is what the user says."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


class PromptPreparer:
    """Chat template and tokenizer of one model. Safe to use from any thread.

    Parameters
    ----------
    tokenizer, template
        The model's.
    max_bytes
        Longest prompt in UTF-8 bytes. A longer one is refused before it keeps the tokenizer busy for seconds. None: no
        limit.
    max_log_len
        Most characters of a prompt shown in the log, at level INFO; None: all, 0: none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        max_bytes: int | None = None,
        max_log_len: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._max_bytes = max_bytes
        self._max_log_len = max_log_len
        self._lock = threading.Lock()  # the tokenizer panics when two threads are in it

    def prepare(
        self,
        prompt: Prompt,
        do_preprocess: bool = True,
        tools: list[dict[str, Any]] | None = None,
        held: HeldSession | None = None,
    ) -> PreparedPrompt:
        """Return what the engine gets for a prompt.

        Parameters
        ----------
        prompt
            A text, which is what the user says, or a conversation.
        do_preprocess
            False: a text is a finished prompt, and no chat template is applied.
        tools
            OpenAI tool descriptions for the chat template.
        held
            What the engine holds of the conversation already; ``prompt`` is only what follows. None: nothing.

        Raises
        ------
        ValueError
            If it is malformed or too long, or there is nothing in it.
        """
        if isinstance(prompt, str) and not do_preprocess:
            return PreparedPrompt(_not_empty(self.encode(prompt, add_bos=held is None)), [])
        messages = as_messages(prompt)
        if held is None:
            rendered = self._template.render(messages, tools)
        elif tools:
            raise ValueError("tools must come with the beginning of a session, got them in a later request")
        else:
            rendered = self._template.render_continuation(messages, held.is_turn_closed, held.rounds)
        ids = self.encode(rendered, add_bos=self._template.add_bos and held is None)
        return PreparedPrompt(_not_empty(ids), self._template.stop_words, rounds_of(messages))

    def encode(self, text: str, *, add_bos: bool) -> list[int]:
        """Return the token ids of a finished prompt.

        Raises
        ------
        ValueError
            If it is too long.
        """
        if self._max_log_len != 0:
            logger.info("prompt: %r", text[: self._max_log_len])
        if self._max_bytes is not None:
            size = len(text.encode(errors="surrogatepass"))
            if size > self._max_bytes:
                raise ValueError(f"the prompt must have at most {self._max_bytes} bytes to fit the model, got {size}")
        with self._lock:
            return self.tokenizer.encode(text, add_bos)


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise ValueError("the prompt must have at least one token, got none")
    return ids
