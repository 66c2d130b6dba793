"""Response state machine: engine chunks in; reasoning, text, calls and the end out. Every API writes these events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.collecting import finish_reason
from openai_gateway.reasoning import ReasoningDelta, ReasoningParser
from openai_gateway.tools.events import (
    ArgumentsFound,
    Call,
    CallBegun,
    CallBroken,
    CallEnded,
    Ended,
    Event,
    ReasoningFound,
    TextFound,
)
from openai_gateway.tools.parser import ToolCallParser


class ResponseMachine:
    """Parser of one choice, which finds reasoning and calls. Its events do not depend on how text is cut into chunks.

    Of a call that the token limit cut, name and arguments are reported as far as they came, without `CallEnded`.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None = None,  # None: there is no reasoning
        calls: ToolCallParser | None = None,  # None: all of the answer is text
        max_calls: int | None = None,  # further calls are left out
        # Told, at the end, how each call was written that was not quite as its format has it
        on_recovered: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self._on_recovered = on_recovered
        self._reasoning = reasoning
        self._calls = calls
        self._max_calls = max_calls
        self._reported: set[int] = set()  # calls
        self.is_text_only = reasoning is None and calls is None  # chunks are text and nothing else

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""
        return 0 if self._reasoning is None else self._reasoning.token_count

    def feed(self, chunks: Sequence[GenerateChunk]) -> list[Event]:
        """Take the next chunks, of which the last one may end the choice."""
        events: list[Event] = []
        if self._reasoning is None:
            self._answer(chunks[0].text if len(chunks) == 1 else "".join(chunk.text for chunk in chunks), events)
        else:
            for chunk in chunks:
                self._take(self._reasoning.feed(chunk.text, chunk.generate_token_len), events)
        last = chunks[-1]
        if last.finish_reason is not None:
            self._finish(last, events)
        return events

    def _finish(self, last: GenerateChunk, events: list[Event]) -> None:
        reason = finish_reason(last)
        is_cut = reason == "length"
        unclosed = ""
        if self._reasoning is not None:
            self._take(self._reasoning.finish(is_cut=is_cut), events)
            unclosed = self._reasoning.unclosed
        if self._calls is not None:
            found = [*self._calls.feed(unclosed), *self._calls.finish(is_cut=is_cut)]
            if unclosed:
                found = [ReasoningFound(event.text) if isinstance(event, TextFound) else event for event in found]
            self._add(found, events)
            for kind in self._calls.recovered:
                self._on_recovered(kind)
        has_calls = bool(self._reported)
        events.append(Ended(reason, has_calls, last.stop_string, last.generate_token_len, last.stop_reason))

    def _take(self, delta: ReasoningDelta, events: list[Event]) -> None:
        if delta.reasoning:
            events.append(ReasoningFound(delta.reasoning))
        self._answer(delta.content, events)

    def _answer(self, text: str, events: list[Event]) -> None:
        if text and self._calls is None:
            events.append(TextFound(text))
        elif text and self._calls is not None:
            self._add(self._calls.feed(text), events)

    def _add(self, found: Iterable[Event], events: list[Event]) -> None:
        for event in found:
            if isinstance(event, (TextFound, ReasoningFound)):
                events.append(event)
            elif isinstance(event, CallBroken):
                self._reported.discard(event.index)
                events.append(event if self._is_allowed(event.index) else TextFound(event.text))
            elif isinstance(event, (CallBegun, ArgumentsFound, CallEnded)) and self._is_allowed(event.index):
                self._reported.add(event.index)
                events.append(event)

    def _is_allowed(self, call: int) -> bool:
        return self._max_calls is None or call < self._max_calls


@dataclass(slots=True)
class WholeResponse:
    """Sum of the events of a choice."""

    reasoning: str = ""
    text: str = ""
    calls: dict[int, Call] = field(default_factory=dict)
    whole_calls: set[int] = field(default_factory=set)
    ended: Ended = field(default_factory=lambda: Ended("stop", False, "", 0))

    def add(self, events: Iterable[Event]) -> WholeResponse:
        """Add the next events, and return the response."""
        for event in events:
            match event:
                case ReasoningFound():
                    self.reasoning += event.text
                case TextFound():
                    self.text += event.text
                case CallBegun():
                    self.calls[event.index] = Call(event.name, "")
                case ArgumentsFound():
                    begun = self.calls[event.index]
                    self.calls[event.index] = Call(begun.name, begun.arguments + event.text)
                case CallEnded():
                    self.whole_calls.add(event.index)
                case CallBroken():
                    del self.calls[event.index]
                    self.text += event.text
                case Ended():
                    self.ended = event
        return self
