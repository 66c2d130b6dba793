"""The Jinja chat template a checkpoint brings along, rendered by ``transformers``."""

from collections.abc import Sequence
from typing import Any

import jinja2

from lmdeploy.templates.base import ChatTemplate
from lmdeploy.templates.conversation import Message
from lmdeploy.templates.tool_calling import parsed_arguments


class JinjaChatTemplate(ChatTemplate):
    """The tokenizer's own template. It writes bos itself, where the model wants one.

    Parameters
    ----------
    hf_tokenizer
        A ``transformers`` tokenizer that has a chat template.
    end_of_sequence
        The model's tokens that end an answer, one of which the template may write after the assistant's turn.
    """

    add_bos = False

    def __init__(self, hf_tokenizer: Any, end_of_sequence: Sequence[str] = ()) -> None:
        self._tokenizer = hf_tokenizer
        self.stop_words = []
        self._end_of_sequence = tuple(end_of_sequence)

    @property
    def end_of_turn(self) -> Sequence[str]:
        """The model's tokens that end an answer."""
        return self._end_of_sequence

    def _render(self, messages: list[Message], tools: list[dict[str, Any]] | None, add_generation_prompt: bool) -> str:
        if tools and "tools" not in self._tokenizer.get_chat_template(tools=tools):
            raise ValueError("tools are not supported by this model's chat template")
        try:
            prompt: str = self._tokenizer.apply_chat_template(
                parsed_arguments(messages), tools=tools, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"messages are refused by the model's chat template: {error}") from error
        return prompt
