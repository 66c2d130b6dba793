"""A prompt that is reported before its responses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.logprobs import Scored, TextPlace, scored_prompt
from openai_gateway.generation.token_texts import TokenTexts


@dataclass(slots=True)
class Echo:
    """What the choices of one prompt begin with.

    Attributes
    ----------
    text : str
        The prompt; empty when it is not given.
    scored : list of Scored
        The prompt's tokens, reported or not, if their log probabilities were asked for and have come.
    shows_special : bool
        Whether special tokens of responses are in their texts.
    """

    text: str
    scored: list[Scored]
    shows_special: bool

    async def place(self, texts: TokenTexts) -> TextPlace:
        """Return where in the text the first token begins: before it, where the tokenizer puts something in front."""
        if not self.text:
            return TextPlace(shown=math.inf if self.shows_special else 0)
        tokens = [one.token for one in self.scored]
        known = await texts.lookup(tokens)
        whole = b"".join(known[token] for token in tokens).decode(errors="replace")
        offset = len(self.text) - len(whole) if whole.endswith(self.text) else 0
        return TextPlace(offset, math.inf if self.shows_special else len(tokens))

    def look_at(self, chunks: Iterable[GenerateChunk]) -> None:
        """Take the prompt's tokens out of the chunk that has them, which is the first of the first choice."""
        for chunk in chunks:
            if chunk.prompt_token_ids:
                self.scored = scored_prompt(chunk)
