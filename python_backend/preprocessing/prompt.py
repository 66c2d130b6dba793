"""Prompt of a request: validates which inputs go together. Independent of Triton."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmdeploy.prompts import PreparedPrompt, PromptPreparer
from lmdeploy.sessions import SessionStates

_UNKNOWN = 2**32 - 1  # what these clients have always received for a token the model does not have


@dataclass(frozen=True)
class SessionTurn:
    """A request's place in a session: the session's id, and whether it begins with this request."""

    session_id: int
    is_first: bool


class RequestEncoder:
    """Prompts of requests to one model."""

    def __init__(self, preparer: PromptPreparer) -> None:
        self._preparer = preparer  # applies the model's chat template and tokenizer
        self._sessions = SessionStates()

    def encode(
        self,
        text: str | None,  # a finished prompt, used as it is; or None
        # A conversation and tools in OpenAI's format, as JSON text; or None. Empty text is the same as None. In place
        # of a conversation an object may hold it as ``messages``, alongside ``chat_template_kwargs``
        messages: str | None,
        tools: str | None,
        stop_words: list[str],  # the caller's; for a conversation the template's own are added
        # Its place in a session, if it is of one. Unless it begins the session the engine holds what comes before: the
        # prompt gets no beginning of its own
        turn: SessionTurn | None = None,
        adapter: str | None = None,  # the LoRA adapter that a conversation is for
        add_special_tokens: bool | None = None,  # as `PromptPreparer.prepare`
        raise_if_cancelled: Callable[[], None] = lambda: None,  # as `PromptPreparer.prepare`
    ) -> PreparedPrompt:
        """Return the prompt of a request.

        Raises `ValueError` if there is not exactly one of ``text`` and ``messages``, one is malformed, or there is
        nothing in it.
        """
        state = None if turn is None or turn.is_first else self._sessions.get(turn.session_id)
        if messages:
            if text:
                raise ValueError("text_input and messages must not both be given")
            conversation, options = _conversation(messages)
            prompt = self._preparer.prepare(
                conversation,
                tools=_json_list("tools", tools or "[]"),
                state=state,
                template_options=options,
                adapter_name=adapter,
                add_special_tokens=add_special_tokens,
                raise_if_cancelled=raise_if_cancelled,
            )
        elif text is None:
            raise ValueError("one of text_input and messages must be given, got neither")
        elif tools:
            raise ValueError("tools must come with messages, got text_input")
        else:
            prompt = self._preparer.prepare(
                text, do_preprocess=False, state=state, add_special_tokens=add_special_tokens
            )
        if turn is not None:
            self._sessions.add(turn.session_id, prompt.rounds, is_first=turn.is_first)
        return prompt._replace(stop_words=list(dict.fromkeys([*stop_words, *prompt.stop_words])))

    def encode_query(self, text: str) -> list[int]:
        """Return the token ids of a text from a client that makes its own prompts (LMDeploy up to 0.5.1).

        ``<BOS>`` and ``<EOS>`` ask for that token. There is always at least one id, because these clients look at the
        first one: for the empty text it is bos, which they take off again. Raises `ValueError` if the text is too long.
        """
        tokenizer = self._preparer.tokenizer
        if text in ("<BOS>", "<EOS>"):
            special = tokenizer.bos_token_id if text == "<BOS>" else tokenizer.eos_token_id
            return [_UNKNOWN if special is None else special]
        placeholders = (tokenizer.bos_token_id, tokenizer.eos_token_id, 0)
        ids = self._preparer.encode(text, add_bos=True)
        return ids or [next(token for token in placeholders if token is not None)]

    @property
    def padding(self) -> int:
        """The token that fills up the shorter ones of several texts."""
        eos = self._preparer.tokenizer.eos_token_id
        return 0 if eos is None else eos


def _conversation(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the messages, and the variables for the chat template."""
    value = _json("messages", text)
    options: Any = {}
    if isinstance(value, dict) and value.keys() == {"messages", "chat_template_kwargs"}:
        value, options = value["messages"], value["chat_template_kwargs"]
    if not isinstance(options, dict):
        raise ValueError(f"chat_template_kwargs must be an object, got {type(options).__name__}")
    return _listed("messages", value), options


def _json_list(name: str, text: str) -> list[Any]:
    return _listed(name, _json(name, text))


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON ({error})") from error


def _listed(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {type(value).__name__}")
    return value
