"""Find tool calls in an answer that comes in pieces."""

from __future__ import annotations

from openai_gateway.tools.events import (
    ArgumentsFound,
    Body,
    Call,
    CallBegun,
    CallBroken,
    Event,
    Found,
    Progress,
    TextFound,
)
from openai_gateway.tools.notations import Readers

_SEPARATORS = " \t\r\n;"


class ToolCallParser:
    """Turns pieces of text into events. However the answer is cut, the calls are the same.

    A call is recognised by its mark, whichever family the model is of, unless `notation` names one. An answer (or what
    follows a call) is a call, too, that begins with a JSON object that names one of the functions; with a function's
    name on a line of its own when a JSON object follows; or with a Python list of calls of the functions.

    Parameters
    ----------
    names : frozenset of str
        The functions the model may call.
    at_once : frozenset of str
        Those whose calls are told when they are whole; calls of the others are told as they come.
    notation : str
        How calls are written, one of `lmdeploy.templates.notations.PARSERS`.
    """

    def __init__(self, names: frozenset[str], at_once: frozenset[str] = frozenset(), notation: str = "auto") -> None:
        self._at_once = at_once
        self._readers = Readers(names, notation)
        self._marks = tuple(self._readers.openings)
        self._group_end = ""  # may stand behind the last call
        self._text = ""  # not told yet: blanks, or what may become a mark
        self._body: Body | None = None
        self._mark = ""  # of the call we are in, with blanks before a bare one
        self._raw = ""  # of the call we are in, after its mark
        self._name: str | None = None  # of the call we are in
        self._arguments = ""  # of it
        self._held_back = ""  # the end of them
        self._is_told = False
        self._calls = 0  # begun
        self._complete = 0
        self._at_start = True  # where a bare call may stand

    def feed(self, text: str) -> list[Event]:
        """Take more of the answer."""
        events: list[Event] = []
        rest: str | None = text
        while rest is not None:
            rest = self._in_text(rest, events) if self._body is None else self._in_call(rest, events)
        return events

    def finish(self) -> list[Event]:
        """Return what the end of the answer decides."""
        events: list[Event] = []
        while self._body is not None:
            rest = self._advance(self._body.finish(), events)
            events += self.feed(rest or "")
        if self._text and not (self._complete and not self._text.strip(_SEPARATORS)):
            events.append(TextFound(self._text))
        self._text = ""
        return events

    def _in_text(self, text: str, events: list[Event]) -> str | None:
        """Look for a call; return what follows its mark, or None when there is none yet."""
        self._text += text
        stripped = self._text.lstrip(self._blanks)
        if self._group_end:
            if self._group_end.startswith(stripped) and stripped != self._group_end:
                return None  # it may yet come
            end, self._group_end = self._group_end, ""
            if stripped.startswith(end):
                self._text = ""
                return stripped.removeprefix(end)
        if self._at_start and stripped and (body := self._bare_call(stripped)) is not None:
            self._open(self._text[: -len(stripped)], body)
            return stripped
        found = [(self._text.find(mark), mark) for mark in self._marks if mark in self._text]
        if found:
            position, mark = min(found)
            before, after = self._text[:position], self._text[position + len(mark) :]
            shown = before.rstrip(self._blanks)
            if shown:
                events.append(TextFound(shown))
            opening = self._readers.openings[mark]
            self._group_end = opening.group_end
            self._open(before[len(shown) :] + mark, opening.body())
            return after
        kept = self._kept_back()
        told = self._text[: len(self._text) - kept]
        if told:
            events.append(TextFound(told))
            self._text = self._text[len(told) :]
            self._at_start = False
        return None

    def _bare_call(self, text: str) -> Body | None:
        """Return a reader for what may be a call without a mark; None: it is none, or begins as a mark does."""
        if any(mark.startswith(text) or text.startswith(mark) for mark in self._marks):
            return None
        return self._readers.bare(text)

    def _kept_back(self) -> int:
        """Return how many characters at the end may turn out to be blanks before a call, or a mark."""
        longest = max((len(mark) for mark in self._marks), default=1) - 1
        for size in range(min(longest, len(self._text)), 0, -1):
            if any(mark.startswith(self._text[-size:]) for mark in self._marks):
                break
        else:
            size = 0
        visible = self._text[: len(self._text) - size].rstrip(self._blanks)
        return len(self._text) - len(visible)

    @property
    def _blanks(self) -> str | None:
        """What may stand around calls; None: white space."""
        return _SEPARATORS if self._complete else None

    def _open(self, mark: str, body: Body) -> None:
        self._text, self._mark, self._body, self._raw = "", mark, body, ""
        self._name, self._arguments, self._held_back, self._is_told = None, "", "", False
        self._at_start = False

    def _in_call(self, text: str, events: list[Event]) -> str | None:
        assert self._body is not None
        self._raw += text
        return self._advance(self._body.feed(text), events)

    def _advance(self, progress: Progress, events: list[Event]) -> str | None:
        """Tell what a body found; return the text after the call once it is over."""
        if progress.name is not None:
            self._name = progress.name
        self._arguments += progress.arguments
        if progress.is_broken:
            return self._give_up(events)
        if self._name is not None:
            self._tell(progress, events)
        if progress.rest is not None:
            self._body = None
            self._calls += 1
            self._complete += 1
            self._at_start = True
            if progress.following is not None:
                self._open("", progress.following)
        return progress.rest

    def _tell(self, progress: Progress, events: list[Event]) -> None:
        """Tell what is new of a call. Its last brace waits until the call is known to be whole."""
        assert self._name is not None
        new = self._held_back + progress.arguments
        if self._name in self._at_once and progress.rest is None:
            self._held_back = new
            return
        if not self._is_told:
            events.append(CallBegun(self._calls, self._name))
            self._is_told = True
        now = new if progress.rest is not None else new.rstrip("}")
        self._held_back = new[len(now) :]
        if now:
            events.append(ArgumentsFound(self._calls, now))

    def _give_up(self, events: list[Event]) -> str:
        """Make text of what is no call, and return the part that may hold another one."""
        self._body, self._group_end = None, ""
        if self._name is None:
            rest = self._raw
            if not self._mark.strip(_SEPARATORS):  # a bare call must not be tried again
                self._mark, rest = self._mark + rest[:1], rest[1:]
            events.append(TextFound(self._mark))
            return rest
        end = max(0, self._raw.find(self._arguments)) + len(self._arguments)
        text = self._mark + self._raw[:end]
        if self._is_told:
            events.append(CallBroken(self._calls, text))
            self._calls += 1
        else:
            events.append(TextFound(text))
        return self._raw[end:]


def parse(text: str, names: frozenset[str], notation: str = "auto") -> Found:
    """Return the text and the calls of a whole answer; what is no proper call stays text."""
    return parse_with(ToolCallParser(names, notation=notation), text)


def parse_with(parser: ToolCallParser, text: str) -> Found:
    """Return what a new parser finds in a whole answer."""
    found = Found()
    calls: dict[int, Call] = {}
    for event in [*parser.feed(text), *parser.finish()]:
        match event:
            case TextFound():
                found.text += event.text
            case CallBegun():
                calls[event.index] = Call(event.name, "")
            case ArgumentsFound():
                begun = calls[event.index]
                calls[event.index] = Call(begun.name, begun.arguments + event.text)
            case CallBroken():
                del calls[event.index]
                found.text += event.text
    found.calls = list(calls.values())
    return found
