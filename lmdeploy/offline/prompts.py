"""What users may hand to the offline API, brought into one form: a batch of prompts, a config for each."""

import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from lmdeploy.messages import GenerationConfig
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.conversation import rounds_of
from lmdeploy.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Message = dict[str, Any]
Prompt = str | list[Message]
GenConfigs = GenerationConfig | list[GenerationConfig] | None


class PreparedPrompt(NamedTuple):
    """Token ids for the engine, the strings that end its answer, and how often the user speaks in it."""

    ids: list[int]
    stop_words: list[str]
    rounds: int = 1


def as_batch(prompts: str | Sequence[Any]) -> tuple[Sequence[Prompt], bool]:
    """Return the prompts as a batch, and whether there was just one.

    Raises
    ------
    ValueError
        If they are no text, list of texts, conversation or list of conversations.
    """
    if isinstance(prompts, str):
        return [prompts], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise ValueError(f"prompts must be a text, a list of texts or messages, got {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], dict):
        return [list(prompts)], True
    return prompts, False


def as_messages(prompt: Prompt) -> list[Message]:
    """Return a prompt as OpenAI messages; a text is what the user says."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def configs_for(gen_config: GenConfigs, count: int) -> list[GenerationConfig]:
    """Return a config for each of ``count`` prompts.

    Raises
    ------
    ValueError
        If there is a list of another length.
    """
    if isinstance(gen_config, list):
        if len(gen_config) != count:
            raise ValueError(f"gen_config must be one, or one for each of the {count} prompts, got {len(gen_config)}")
        return gen_config
    return [gen_config or GenerationConfig()] * count


class PromptPreparer:
    """Chat template and tokenizer of one model. Safe to use from any thread.

    Parameters
    ----------
    tokenizer, template
        The model's.
    max_log_len
        Most characters of a prompt shown in the log; None: all.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, max_log_len: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_log_len = max_log_len
        self._lock = threading.Lock()  # the tokenizer panics when two threads are in it

    def prepare(
        self, prompt: Prompt, do_preprocess: bool = True, tools: list[dict[str, Any]] | None = None
    ) -> PreparedPrompt:
        """Return a prompt that begins a conversation.

        Parameters
        ----------
        prompt
            A text, or a conversation.
        do_preprocess
            False: a text is a finished prompt, and no chat template is applied.
        tools
            OpenAI tool descriptions for the chat template.

        Raises
        ------
        ValueError
            If it is malformed.
        """
        if isinstance(prompt, str) and not do_preprocess:
            return PreparedPrompt(self._encode(prompt, True), [])
        messages = as_messages(prompt)
        return self._prepared(self._template.render(messages, tools), self._template.add_bos, rounds_of(messages))

    def prepare_continuation(
        self, prompt: Prompt, do_preprocess: bool, is_turn_closed: bool, rounds_held: int = 1
    ) -> PreparedPrompt:
        """Return a prompt that goes on in a conversation the engine holds.

        Parameters
        ----------
        prompt, do_preprocess
            As in ``prepare``; the new part alone.
        is_turn_closed
            Whether the model ended its last turn itself.
        rounds_held
            How many rounds of user and assistant the engine holds, for formats that number them.

        Raises
        ------
        ValueError
            If it is malformed.
        """
        if isinstance(prompt, str) and not do_preprocess:
            return PreparedPrompt(self._encode(prompt, False), [])
        messages = as_messages(prompt)
        rendered = self._template.render_continuation(messages, is_turn_closed, rounds_held)
        return self._prepared(rendered, False, rounds_of(messages))

    def _prepared(self, text: str, add_bos: bool, rounds: int) -> PreparedPrompt:
        return PreparedPrompt(self._encode(text, add_bos), self._template.stop_words, rounds)

    def _encode(self, text: str, add_bos: bool) -> list[int]:
        logger.info("prompt: %r", text[: self._max_log_len])
        with self._lock:
            return self._tokenizer.encode(text, add_bos)
