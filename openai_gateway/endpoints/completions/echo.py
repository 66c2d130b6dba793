"""A prompt that is reported before its responses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.logprobs import Scored, scored_prompt
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
    """

    text: str
    scored: list[Scored]

    async def offset(self, texts: TokenTexts) -> int:
        """Return where in the text the first token begins: before it, where the tokenizer has put one in front."""
        table = await texts.table()
        first = self.scored[0].token if self.scored else 0
        if table is None or not self.scored or not table.special[first]:
            return 0
        name = table.tokens[first].decode(errors="replace")
        return 0 if self.text.startswith(name) else -len(name)

    def look_at(self, chunks: Iterable[GenerateChunk]) -> None:
        """Take the prompt's tokens out of the chunk that has them, which is the first of the first choice."""
        for chunk in chunks:
            if chunk.prompt_token_ids:
                self.scored = scored_prompt(chunk)
