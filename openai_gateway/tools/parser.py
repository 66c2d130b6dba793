"""Streaming tool-call parser."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from openai_gateway.delimiters import delimiters_of
from openai_gateway.tools.events import (
    ArgumentsFound,
    Body,
    CallBegun,
    CallBroken,
    CallEnded,
    Event,
    Progress,
    TextFound,
)
from openai_gateway.tools.formats import Readers, Schemas, is_tag

_SEPARATORS = " \t\r\n;"


class ToolCallParser:
    """Turns pieces of text into events. However the text is cut, the calls are the same.

    A call is recognised by its tag, whichever family the model is of, unless `parser` names one. A response (or what
    follows a call) is a call, too, that begins with a JSON object that names one of the functions; with a function's
    name on a line of its own when a JSON object follows; or with a Python list of calls of the functions. A whole call
    between tags that nothing else has is one, too, where it names another function, for the client to answer.
    """

    def __init__(
        self,
        # The functions the model may call: the schemas of their arguments by their names, or the names alone
        functions: Schemas | Collection[str],
        # Those whose calls are reported when they are whole; calls of the others are reported as they come
        at_once: Collection[str] = (),
        parser: str = "auto",  # how calls are written, one of `lmdeploy.templates.tool_call_formats.PARSERS`
        *,
        recovers: bool = False,  # calls are also read that are not quite so (`openai_gateway.tools.near_misses`)
    ) -> None:
        schemas = functions if isinstance(functions, Mapping) else {name: {} for name in functions}
        self._streamed = frozenset(schemas).difference(at_once)
        self._readers = Readers(schemas, parser, recovers=recovers)
        self._recovers = recovers
        self._kind = ""  # of the call we are in, how it is not quite as its format has it
        self.recovered: list[str] = []  # how the calls were written that were not quite so
        self._delimiters = delimiters_of(tuple(self._readers.openings))
        self._group_ends: tuple[str, ...] = ()  # each may follow the last call
        self._text = ""  # not given yet: blanks, or what may become a tag
        self.body: Body | None = None  # reads the call we are in
        self._tag = ""  # of the call we are in, with blanks before a bare one
        self._raw = ""  # of the call we are in, after its tag
        self._name: str | None = None  # of the call we are in
        self._arguments = ""  # of it
        self._pending = ""  # the end of them
        self._is_reported = False
        self._calls = 0  # begun
        self.complete = 0  # calls so far
        self._at_start = True  # where a bare call may be

    def feed(self, text: str) -> list[Event]:
        """Take more of the response."""
        events: list[Event] = []
        rest: str | None = text
        while rest is not None:
            rest = self._in_text(rest, events) if self.body is None else self._in_call(rest, events)
        return events

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags before calls that no prose has."""
        return tuple(filter(is_tag, self._readers.openings))

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the events at the end of the response; a call that the token limit cut off has none."""
        events: list[Event] = []
        while self.body is not None:
            progress = self.body.finish()
            if (
                is_cut
                and (progress.is_broken or progress.recovered == "unclosed")
                and (self._is_reported or is_tag(self._tag.lstrip()))
            ):
                self.body = None
                return events
            rest = self._advance(progress, events)
            events += self.feed(rest or "")
        if self._text and not (self.complete and not self._text.strip(_SEPARATORS)):
            events.append(TextFound(self._text))
        self._text = ""
        return events

    def _in_text(self, text: str, events: list[Event]) -> str | None:
        """Look for a call; return what follows its tag, or None when there is none yet."""
        self._text += text
        if self._group_ends or self._at_start:
            stripped = self._text.lstrip(self._blanks)
            if self._group_ends:
                if any(end.startswith(stripped) and stripped != end for end in self._group_ends):
                    return None  # it may yet come
                found = next((end for end in self._group_ends if stripped.startswith(end)), None)
                self._group_ends = ()
                if found is not None:
                    self._text = ""
                    return stripped.removeprefix(found)
            if self._at_start and stripped and (body := self._bare_call(stripped)) is not None:
                self._open(self._text[: -len(stripped)], body)
                return stripped
        if match := self._delimiters.find(self._text):
            tag, before, after = match[0], self._text[: match.start()], self._text[match.end() :]
            shown = before.rstrip(self._blanks)
            if shown:
                events.append(TextFound(shown))
            opening = self._readers.openings[tag]
            self._group_ends = tuple(opening.group_ends)
            self._open(before[len(shown) :] + tag, opening.body())
            return after
        text = self._text
        reported = text[: self._delimiters.may_begin_at(text)].rstrip(self._blanks)
        if reported:
            events.append(TextFound(reported))
            self._text = text[len(reported) :]
            self._at_start = False
        return None

    def _bare_call(self, text: str) -> Body | None:
        """Return a reader for what may be a call without a tag; None: it is none, or begins as a tag does."""
        body = self._readers.bare(text, is_first=not self._calls)
        if body is None or any(tag.startswith(text) or text.startswith(tag) for tag in self._readers.openings):
            return None
        return body

    @property
    def _blanks(self) -> str | None:
        """Text that may surround calls; None: white space."""
        return _SEPARATORS if self.complete else None

    def _open(self, tag: str, body: Body) -> None:
        self._text, self._tag, self.body, self._raw, self._kind = "", tag, body, "", ""
        self._name, self._arguments, self._pending, self._is_reported = None, "", "", False
        self._at_start = False

    def _in_call(self, text: str, events: list[Event]) -> str | None:
        assert self.body is not None
        self._raw += text
        return self._advance(self.body.feed(text), events)

    def _advance(self, progress: Progress, events: list[Event]) -> str | None:
        """Report what a body found; return the text after the call once it is over."""
        if progress.recovered in ("unclosed", "comma") and not self._recovers:
            progress = Progress(is_broken=True, rest=progress.rest)
        self._kind = progress.recovered or self._kind
        if progress.name is not None:
            self._name = progress.name
        self._arguments += progress.arguments
        if progress.is_broken:
            return self._as_text(events, progress.rest)
        if self._name is not None:
            self._report(progress, events)
        if progress.rest is not None:
            self.body = None
            if self._is_reported:
                events.append(CallEnded(self._calls))
            if self._kind:
                self.recovered.append(self._kind)
            self._calls += 1
            self.complete += 1
            self._at_start = True
            if progress.following is not None:
                self._open("", progress.following)
        return progress.rest

    def _report(self, progress: Progress, events: list[Event]) -> None:
        """Say what is new of a call. Its last brace waits until the call is known to be whole."""
        assert self._name is not None
        new = self._pending + progress.arguments
        if self._name not in self._streamed and progress.rest is None:
            self._pending = new
            return
        if not self._is_reported:
            events.append(CallBegun(self._calls, self._name))
            self._is_reported = True
        now = new if progress.rest is not None else new.rstrip("}")
        self._pending = new[len(now) :]
        if now:
            events.append(ArgumentsFound(self._calls, now))

    def _as_text(self, events: list[Event], unread: str | None) -> str:
        """Make text of what is no call, and return the part that may hold another one."""
        self.body, self._group_ends = None, ()
        if self._name is None:
            rest = self._raw
            if not self._tag.strip(_SEPARATORS):  # a bare call must not be tried again
                self._tag, rest = self._tag + rest[:1], rest[1:]
            events.append(TextFound(self._tag))
            return rest
        if unread is None:  # the arguments were reported as they are written
            unread = self._raw[max(0, self._raw.find(self._arguments)) + len(self._arguments) :]
        text = self._tag + self._raw[: len(self._raw) - len(unread)]
        if self._is_reported:
            events.append(CallBroken(self._calls, text))
            self._calls += 1
        else:
            events.append(TextFound(text))
        return unread
