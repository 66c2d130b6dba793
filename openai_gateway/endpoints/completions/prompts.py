"""Prompts of completions: with the text after a gap, or reported before their responses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.errors import ApiError
from openai_gateway.generation.logprobs import Scored, TextCursor, scored_prompt
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.models import ServedModel


@dataclass(slots=True)
class Echo:
    """Common prefix of one prompt's choices."""

    text: str  # the prompt; empty when it is not given
    # The prompt's tokens, reported or not, if their log probabilities were asked for and have come
    scored: list[Scored]
    shows_special: bool  # whether special tokens of responses are in their texts

    async def cursor(self, texts: TokenTexts) -> TextCursor:
        """Return where in the text the first token begins: before it, where the tokenizer puts something in front."""
        if not self.text:
            return TextCursor(shown=math.inf if self.shows_special else 0)
        tokens = [one.token for one in self.scored]
        known = await texts.lookup(tokens)
        whole = b"".join(known[token] for token in tokens).decode(errors="replace")
        offset = len(self.text) - len(whole) if whole.endswith(self.text) else 0
        return TextCursor(offset, math.inf if self.shows_special else len(tokens))

    def observe(self, chunks: Iterable[GenerateChunk]) -> None:
        """Take the prompt's tokens out of the chunk that has them, which is the first of the first choice."""
        for chunk in chunks:
            if chunk.prompt_token_ids:
                self.scored = scored_prompt(chunk)


def whole_prompt(
    model: ServedModel, prompt: str | list[int], suffix: str | None
) -> tuple[str | list[int], Sequence[str]]:
    """Return a prompt as the model wants it, with the text after the gap, and what further ends the response.

    Raises `ApiError` if there is such a text, and the model cannot be asked for a missing middle.
    """
    if not suffix or not isinstance(prompt, str):
        return prompt, ()
    if model.infilling is None:
        raise ApiError(400, f"The model `{model.name}` fills in no middles; leave suffix out.", param="suffix")
    return model.infilling.prompt(prompt, suffix), model.infilling.stop_words
