"""Readers of tool calls by format: in groups between tags, in several ways, or after a head with the name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

from openai_gateway.tools.events import Body, Progress, may_begin_name
from openai_gateway.tools.json_prefix import JsonObjectReader

_MAX_HEAD_LEN = 200  # characters


class ArgumentsBehindHead(ABC):
    """Reads a head, the arguments, and the tag that closes the call, which may be missing at the end."""

    def __init__(self, closings: tuple[str, ...]) -> None:
        self._closings = closings  # each may be the tag after the arguments; none: there is none
        self._text = ""
        self._arguments: JsonObjectReader | None = None
        self._reported = 0  # up to where in the text

    def _end_without_arguments(self, name: str, after: str, progress: Progress) -> bool:
        """Report a call whose closing tag follows its head; return whether it does."""
        closing = next((tag for tag in self._closings if after.startswith(tag)), None)
        if closing is None:
            return False
        progress.name, progress.arguments, progress.rest = name, "{}", after[len(closing) :]
        return True

    def feed(self, text: str) -> Progress:
        self._text += text
        progress = Progress()
        if self._arguments is None:
            self._read_head(self._text, progress)
        if self._arguments is None:
            return progress
        self._text = self._arguments.read(self._text)
        progress.arguments = self._text[self._reported : self._arguments.position]
        self._reported = self._arguments.position
        progress.is_broken = self._arguments.is_broken
        progress.recovered = "comma" if self._arguments.has_skipped else ""
        if self._arguments.is_complete:
            self._close(progress)
        return progress

    def finish(self) -> Progress:
        """The response is over: complete arguments will do."""
        is_complete = self._arguments is not None and self._arguments.is_complete
        return Progress(rest="") if is_complete else Progress(is_broken=True)

    @abstractmethod
    def _read_head(self, text: str, progress: Progress) -> None:
        """Decide whether `text` begins with a head: report the name and `_begin_arguments`, or that it is broken."""

    def _begin_arguments(self, position: int) -> None:
        self._reported = position
        self._arguments = JsonObjectReader(position, skips_commas=True)

    def _close(self, progress: Progress) -> None:
        after = self._text[self._reported :]
        stripped = after.lstrip()
        closing = next((tag for tag in self._closings if stripped.startswith(tag)), None)
        if not self._closings:
            progress.rest = after
        elif closing is not None:
            progress.rest = stripped[len(closing) :]
        elif not any(tag.startswith(stripped) for tag in self._closings):
            progress.is_broken = True


class NamedCall(ArgumentsBehindHead):
    """Reads a name, what ends it, the arguments, and the tag that closes the call.

    ``closing``: the tag after the arguments; empty: there is none.
    """

    def __init__(self, ending: str, closing: str, names: Collection[str]) -> None:
        super().__init__((closing,) if closing else ())
        self._ending = ending  # what comes after the name
        self._names = names  # the functions it may be; others are no call

    def _read_head(self, text: str, progress: Progress) -> None:
        name, ending, after = text.partition(self._ending)
        if not ending:
            progress.is_broken = not may_begin_name(name, self._names)
            return
        opening = after.lstrip()
        begins = ("{", *self._closings)
        if name not in self._names or not any(opening.startswith(begin[: len(opening)]) for begin in begins):
            progress.is_broken = True
        elif not self._end_without_arguments(name, opening, progress) and opening.startswith("{"):
            progress.name = name
            self._begin_arguments(len(text) - len(opening))


class HeadedCall(ArgumentsBehindHead):
    """Reads a head that an expression describes, the arguments, and one of the tags that close the call.

    ``pattern``: matches what is before the arguments. One of its groups is the name. ``closings``: the tags; none: the
    arguments end the call.
    """

    def __init__(self, pattern: str, closings: tuple[str, ...], names: Collection[str]) -> None:
        super().__init__(closings)
        self._pattern = re.compile(pattern)
        self._names = names  # the functions it may be; others are no call

    def _read_head(self, text: str, progress: Progress) -> None:
        head, opening, _ = text.partition("{")
        for closing in self._closings:
            before, tag, _ = head.partition(closing)
            if tag and (match := self._pattern.fullmatch(before)) and (name := _name_of(match)) in self._names:
                self._end_without_arguments(name, text[len(before) :], progress)
                return
        match = self._pattern.fullmatch(head) if opening else None
        name = _name_of(match) if match else ""
        if name in self._names:
            progress.name = name
            self._begin_arguments(len(head))
        else:
            progress.is_broken = bool(opening) or len(head) > _MAX_HEAD_LEN


def _name_of(match: re.Match[str]) -> str:
    return next((name for name in match.groups() if name), "")


class GroupedCall:
    """Reads one call of a group and the tag that closes the group, which may be missing at the end of a response."""

    def __init__(
        self, new_call: Callable[[], Body], closing: str, opening: str = "", separator: str | None = None
    ) -> None:
        self._new_call = new_call  # makes a reader for a call itself
        self._call = new_call()
        self._closing = closing
        self._opening = opening  # comes before the call
        self._separator = separator  # comes before the next call; None: there is one call
        self._head: str | None = "" if opening else None  # until the opening has come
        self._after: str | None = None  # what came after the call

    def feed(self, text: str) -> Progress:
        if self._head is not None:
            self._head += text
            opened = self._head.lstrip()
            if not opened.startswith(self._opening):
                return Progress(is_broken=bool(opened))
            self._head, text = None, opened[len(self._opening) :]
        if self._after is None:
            progress = self._call.feed(text)
            if progress.is_broken or progress.rest is None:
                return progress
            self._after, progress.rest = progress.rest, None
        else:
            self._after += text
            progress = Progress()
        after = self._after.lstrip()
        if after.startswith(self._closing):
            progress.rest = after[len(self._closing) :]
        elif self._closing.startswith(after):
            pass  # the tag may yet come
        elif self._separator is not None and after.startswith(self._separator):
            separated = GroupedCall(self._new_call, self._closing, self._separator, self._separator)
            progress.rest, progress.following = after, separated
        else:
            progress.is_broken, progress.rest = True, self._after
        return progress

    def finish(self) -> Progress:
        """The response is over: a complete call will do."""
        return self._call.finish() if self._after is None else Progress(rest="")


class FirstThatFits:
    """Reads with several readers until one of them knows the function, and then with that one alone.

    ``bodies``: new ones; of two that know it at once the first is taken.
    """

    def __init__(self, bodies: Sequence[Body]) -> None:
        self._bodies = list(bodies)

    def feed(self, text: str) -> Progress:
        if len(self._bodies) == 1:
            return self._bodies[0].feed(text)
        left = list[Body]()
        for body in self._bodies:
            progress = body.feed(text)
            if progress.is_broken:
                continue
            if progress.name is not None or progress.rest is not None:
                self._bodies = [body]
                return progress
            left.append(body)
        self._bodies = left
        return Progress(is_broken=not left)

    def finish(self) -> Progress:
        if len(self._bodies) == 1:
            return self._bodies[0].finish()
        found = (body.finish() for body in self._bodies)
        return next((progress for progress in found if not progress.is_broken), Progress(is_broken=True))
