"""Qwen2.5: each call is ``<tool_call>`` JSON ``</tool_call>``; there may be several."""

from __future__ import annotations

from openai_gateway.tools.events import Body
from openai_gateway.tools.marked import MarkedCall


class Qwen:
    """The notation of Qwen2.5."""

    marks = ("<tool_call>",)

    def body(self, mark: str) -> Body:
        """Return a reader for one call."""
        return MarkedCall("</tool_call>")
