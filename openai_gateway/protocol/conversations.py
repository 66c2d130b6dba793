"""Request fields of conversations, in all APIs."""

from __future__ import annotations

from typing import Any

from openai_gateway.protocol.fields import Strict
from openai_gateway.protocol.tools import Tool


class ConversationFields(Strict):
    """Properties that every API derives from its own fields, and what follows from them."""

    @property
    def conversation(self) -> list[dict[str, Any]] | str:
        """The messages as chat templates read them; a text continues without a template."""
        raise NotImplementedError

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template."""
        raise NotImplementedError

    @property
    def continues(self) -> bool:
        """Whether the last message is the beginning of the response."""
        return False

    @property
    def reasoning_budget(self) -> int | None:
        """Tokens that reasoning may take; None: any number."""
        return None

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools the model may call."""
        raise NotImplementedError

    @property
    def forced_tools(self) -> list[Tool]:
        """The tools of which one has to be called; none: the model decides."""
        raise NotImplementedError

    @property
    def names_a_tool(self) -> bool:
        """Whether one tool has to be called, and once."""
        raise NotImplementedError

    @property
    def calls_in_parallel(self) -> bool | None:
        """Whether the model may call more than once; None: not said."""
        raise NotImplementedError

    @property
    def may_call_several(self) -> bool:
        """Whether a grammar of calls allows more than one.

        Of forced ones only where that is asked for: a weak model may call forever.
        """
        if self.names_a_tool:
            return False
        return bool(self.calls_in_parallel) if self.forced_tools else self.calls_in_parallel is not False

    @property
    def max_calls(self) -> int | None:
        """How many calls are reported; None: all."""
        return 1 if self.calls_in_parallel is False else None
