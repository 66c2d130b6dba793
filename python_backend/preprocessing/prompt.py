"""From what a request says to token ids; knows nothing of Triton."""

import json
import logging
from dataclasses import dataclass
from typing import Any

from lmdeploy.model import ChatTemplate
from lmdeploy.templates.conversation import rounds_of
from lmdeploy.tokenizer import Tokenizer
from python_backend.preprocessing.rounds import SessionRounds

logger = logging.getLogger(__name__)

_UNKNOWN = 2**32 - 1  # what these clients have always been told for a token the model does not have


@dataclass(frozen=True)
class Prompt:
    """Token ids for the engine, and the strings that end its answer."""

    ids: list[int]
    stop_words: list[str]


@dataclass(frozen=True)
class SessionTurn:
    """A request's place in a session: the session's id, and whether it begins with this request."""

    session_id: int
    is_first: bool


class PromptEncoder:
    """Applies one model's chat template and tokenizer.

    Parameters
    ----------
    tokenizer, template
        The model's.
    max_bytes
        Longest prompt in UTF-8 bytes. A longer one is refused before it keeps the tokenizer busy for seconds: even in
        the longest tokens it could not fit the model's context.
    max_log_len
        Most characters of a rendered prompt in the log, at level INFO; 0: none.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, max_bytes: int, max_log_len: int = 0) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_bytes = max_bytes
        self._max_log_len = max_log_len
        self._rounds = SessionRounds()

    def encode(
        self,
        text: str | None,
        messages: str | None,
        tools: str | None,
        stop_words: list[str],
        turn: SessionTurn | None = None,
    ) -> Prompt:
        """Return the prompt of a request.

        Parameters
        ----------
        text
            A finished prompt, used as it is; or None.
        messages, tools
            A conversation and tools in OpenAI's format, as JSON text; or None. Empty text is the same as None.
        stop_words
            The caller's; for a conversation the template's own are added.
        turn
            Its place in a session, if it is of one. Unless it begins the session the engine holds what comes before:
            the prompt gets no beginning of its own.

        Raises
        ------
        ValueError
            If there is not exactly one of ``text`` and ``messages``, one is malformed, or there is nothing in it.
        """
        is_continuation = turn is not None and not turn.is_first
        if "" in stop_words:
            raise ValueError("stop_words must be non-empty strings, got an empty one")
        rounds = 1
        if messages:
            if text:
                raise ValueError("text_input and messages must not both be given")
            conversation = _json_list("messages", messages)
            rendered = self._render(conversation, _json_list("tools", tools or "[]"), turn)
            rounds = rounds_of(conversation)
            if self._max_log_len:
                logger.info("prompt: %r", rendered[: self._max_log_len])
            ids = self._tokenize(rendered, self._template.add_bos and not is_continuation)
            stop_words = list(dict.fromkeys([*stop_words, *self._template.stop_words]))
        elif text is None:
            raise ValueError("one of text_input and messages must be given, got neither")
        elif tools:
            raise ValueError("tools must come with messages, got text_input")
        else:
            ids = self._tokenize(text, not is_continuation)
        if not ids:
            raise ValueError("the prompt must have at least one token, got none")
        if turn is not None:
            self._rounds.add(turn.session_id, rounds, is_first=turn.is_first)
        return Prompt(ids, stop_words)

    def encode_query(self, text: str) -> list[int]:
        """Return the token ids of a text from a client that makes its own prompts (LMDeploy up to 0.5.1).

        ``<BOS>`` and ``<EOS>`` ask for that token. There is always at least one id, because these clients look at the
        first one: for the empty text it is bos, which they take off again.

        Raises
        ------
        ValueError
            If the text is too long.
        """
        tokenizer = self._tokenizer
        if text in ("<BOS>", "<EOS>"):
            special = tokenizer.bos_token_id if text == "<BOS>" else tokenizer.eos_token_id
            return [_UNKNOWN if special is None else special]
        placeholders = (tokenizer.bos_token_id, tokenizer.eos_token_id, 0)
        return self._tokenize(text, True) or [next(token for token in placeholders if token is not None)]

    @property
    def padding(self) -> int:
        """The token that fills up the shorter ones of several texts."""
        eos = self._tokenizer.eos_token_id
        return 0 if eos is None else eos

    def _render(self, messages: list[Any], tools: list[Any], turn: SessionTurn | None) -> str:
        if turn is None or turn.is_first:
            return self._template.render(messages, tools)
        if tools:
            raise ValueError("tools must come with the beginning of a session, got them in a later request")
        return self._template.render_continuation(messages, rounds_held=self._rounds.held(turn.session_id))

    def _tokenize(self, prompt: str, add_bos: bool) -> list[int]:
        size = len(prompt.encode(errors="surrogatepass"))
        if size > self._max_bytes:
            raise ValueError(f"the prompt must have at most {self._max_bytes} bytes to fit the model, got {size}")
        return self._tokenizer.encode(prompt, add_bos)


def _json_list(name: str, text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON ({error})") from error
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {type(value).__name__}")
    return value
