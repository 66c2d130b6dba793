"""InternLM2 and 2.5: ``<|action_start|><|plugin|>`` JSON ``<|action_end|>``; the end, a stop word, may be missing."""

from __future__ import annotations

from openai_gateway.tools.events import Body
from openai_gateway.tools.marked import MarkedCall


class InternLM2:
    """The notation of InternLM2."""

    marks = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>")

    def body(self, mark: str) -> Body:
        """Return a reader for one call."""
        return MarkedCall("<|action_end|>")
