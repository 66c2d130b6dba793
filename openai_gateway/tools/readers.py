"""Readers of calls as families write them: between marks, in a list, or behind the function's name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from openai_gateway.tools.events import Progress
from openai_gateway.tools.json_call import JsonCall
from openai_gateway.tools.json_prefix import JsonObjectReader

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LONGEST_HEAD = 200  # characters


class NamedCall:
    """Reads a name, what ends it, the arguments, and the mark that closes the call, which may be missing at the end.

    Parameters
    ----------
    ending : str
        What comes after the name.
    closing : str
        The mark after the arguments; empty: there is none.
    names : frozenset of str, optional
        The functions it may be; others are no call. None: any.
    """

    def __init__(self, ending: str, closing: str = "", names: frozenset[str] | None = None) -> None:
        self._ending = ending
        self._closing = closing
        self._names = names
        self._text = ""
        self._arguments: JsonObjectReader | None = None
        self._told = 0  # up to where in the text

    def feed(self, text: str) -> Progress:
        """Take more text."""
        self._text += text
        progress = Progress()
        if self._arguments is None:
            self._read_head(progress)
        if self._arguments is None:
            return progress
        self._arguments.read(self._text)
        progress.arguments = self._text[self._told : self._arguments.position]
        self._told = self._arguments.position
        progress.is_broken = self._arguments.is_broken
        if self._arguments.is_complete:
            self._close(progress)
        return progress

    def finish(self) -> Progress:
        """The answer is over: complete arguments will do."""
        is_complete = self._arguments is not None and self._arguments.is_complete
        return Progress(rest="") if is_complete else Progress(is_broken=True)

    def _read_head(self, progress: Progress) -> None:
        name, ending, after = self._text.partition(self._ending)
        if not ending:
            progress.is_broken = len(name) > _LONGEST_HEAD or not self._may_become_known(name)
            return
        opening = after.lstrip()
        if not _NAME.fullmatch(name) or not self._is_known(name) or (opening and not opening.startswith("{")):
            progress.is_broken = True
        elif opening:
            progress.name = name
            self._told = len(self._text) - len(opening)
            self._arguments = JsonObjectReader(self._told)

    def _close(self, progress: Progress) -> None:
        after = self._text[self._told :]
        if not self._closing:
            progress.rest = after
        elif after.lstrip().startswith(self._closing):
            progress.rest = after.lstrip()[len(self._closing) :]
        elif not self._closing.startswith(after.lstrip()):
            progress.is_broken = True

    def _is_known(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _may_become_known(self, beginning: str) -> bool:
        return self._names is None or any(name.startswith(beginning) for name in self._names)


class FollowedCall(ABC):
    """Reads a JSON call and what follows it, which may be missing at the very end of an answer."""

    def __init__(self) -> None:
        self._call = JsonCall()
        self._after: str | None = None  # what came after the object

    def feed(self, text: str) -> Progress:
        """Take more text."""
        if self._after is None:
            progress = self._call.feed(text)
            if progress.is_broken or progress.rest is None:
                return progress
            self._after, progress.rest = progress.rest, None
        else:
            self._after += text
            progress = Progress()
        self._follow(self._after.lstrip(), progress)
        return progress

    def finish(self) -> Progress:
        """The answer is over: a complete object will do."""
        return Progress(is_broken=True) if self._after is None else Progress(rest="")

    @abstractmethod
    def _follow(self, after: str, progress: Progress) -> None:
        """Decide by what came after the object whether the call is over, or none."""


class MarkedCall(FollowedCall):
    """Reads a JSON call and the mark that closes it.

    Parameters
    ----------
    closing : str
        The mark after the call.
    """

    def __init__(self, closing: str) -> None:
        super().__init__()
        self._closing = closing

    def _follow(self, after: str, progress: Progress) -> None:
        if after.startswith(self._closing):
            progress.rest = after[len(self._closing) :]
        elif not self._closing.startswith(after):
            progress.is_broken = True


class ListedCall(FollowedCall):
    """A call of a list, from the bracket or comma before it to the bracket or comma behind it."""

    def __init__(self, opening: str) -> None:
        super().__init__()
        self._opening = opening
        self._head: str | None = ""  # until the opening has come

    def feed(self, text: str) -> Progress:
        """Take more text."""
        if self._head is not None:
            self._head += text
            opened = self._head.lstrip()
            if not opened.startswith(self._opening):
                return Progress(is_broken=bool(opened))
            self._head, text = None, opened[len(self._opening) :]
        return super().feed(text)

    def _follow(self, after: str, progress: Progress) -> None:
        if after.startswith("]"):
            progress.rest = after[1:]
        elif after.startswith(","):
            progress.rest, progress.following = after, ListedCall(",")
        else:
            progress.is_broken = bool(after)
