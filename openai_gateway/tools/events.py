"""Events of a tool call parser, in order, and the result of the reader of one call."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from openai_gateway.protocol.outputs import FinishReason

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""A function's."""


@dataclass(frozen=True, slots=True)
class ReasoningFound:
    """Text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class TextFound:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a function, whose arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsFound:
    """The next piece of a call's arguments, as JSON text.

    The pieces of a call are the beginning of a JSON object at any time, and a whole one only if the call is proper.
    """

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call is whole; one that the token limit cut never is."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that was asked to have begun is none; its arguments stay unfinished."""

    index: int  # the call
    text: str  # what was read of it, as the model wrote it, to be shown as text. What comes after is reported as text


@dataclass(frozen=True, slots=True)
class Ended:
    """The response is over; the last event."""

    reason: FinishReason
    has_calls: bool  # it has calls, of which the last one may be cut
    stop_string: str  # the stop word that ended it
    tokens: int  # of the whole response
    stop_reason: Literal["repetition"] | None = None  # what made a response end by ``length`` before its limit


Event = ReasoningFound | TextFound | CallBegun | ArgumentsFound | CallEnded | CallBroken | Ended


@dataclass(slots=True)
class Progress:
    """Progress of a call in the text that its reader got."""

    name: str | None = None  # the function, once, when it is known
    arguments: str = ""  # new arguments, as far as they are the beginning of a JSON object
    rest: str | None = None  # the call is complete, and this text comes after it
    following: Body | None = None  # the call is complete, and `rest` is for this reader: it is the next call of a list
    is_broken: bool = False  # this is no call; `rest` is what was not read of it, where that is known
    recovered: str = ""  # the call is not as its format has it, and this is how; empty: it is


class Body(Protocol):
    """Reads one call, from after its opening tag to its end."""

    def feed(self, text: str) -> Progress:
        """Take more text."""

    def finish(self) -> Progress:
        """The response is over; ``rest`` is set or ``is_broken``."""


@dataclass(frozen=True, slots=True)
class Call:
    """A complete call."""

    name: str
    arguments: str


def call_id() -> str:
    """Return a new id for a call; tools' answers refer to it."""
    return f"call_{uuid.uuid4().hex[:24]}"


def may_begin_name(text: str, names: Collection[str]) -> bool:
    """Return whether one of `names` may begin with `text`."""
    return text in names or any(known.startswith(text) for known in names)
