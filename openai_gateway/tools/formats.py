"""The readers of every format that `lmdeploy.templates.tool_call_formats` describes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lmdeploy.templates import tool_call_formats as formats
from openai_gateway.tools.events import Body
from openai_gateway.tools.first_that_fits import FirstThatFits
from openai_gateway.tools.json_call import JsonCall
from openai_gateway.tools.python_call import PythonCall
from openai_gateway.tools.python_tag import PythonTag
from openai_gateway.tools.quoted_call import QuotedCall
from openai_gateway.tools.readers import HeadedCall, LineCall, ListedCall, MarkedCall, NamedCall
from openai_gateway.tools.tagged_call import TaggedCall

Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Opening:
    """What a mark opens.

    Attributes
    ----------
    bodies : list of callable
        Each makes a reader for what may follow the mark; formats share some.
    group_ends : list of str
        What may be after the last of several calls, and belongs to no text.
    """

    bodies: list[Callable[[], Body]] = field(default_factory=list)
    group_ends: list[str] = field(default_factory=list)

    def body(self) -> Body:
        """Return a new reader."""
        return _one_of(self.bodies)


class Readers:
    """What makes readers for calls.

    Parameters
    ----------
    functions : mapping
        The schemas of the arguments, by the names of the functions the model may call.
    parser : str
        One of `lmdeploy.templates.tool_call_formats.PARSERS`.

    Attributes
    ----------
    openings : dict
        By the mark before a call.
    """

    def __init__(self, functions: Schemas, parser: str = "auto") -> None:
        self._functions = functions
        self._names = frozenset(functions)
        self._described = formats.tool_call_formats_of(parser)
        self.openings: dict[str, Opening] = {}
        for described in self._described:
            for mark, body, group_ends in self._openings(described):
                opening = self.openings.setdefault(mark, Opening())
                opening.bodies.append(body)
                opening.group_ends += (end for end in group_ends if end and end not in opening.group_ends)

    def bare(self, text: str) -> Body | None:
        """Return a reader for what may be the beginning of a call without a mark; None: it is none."""
        bodies = list[Callable[[], Body]]()
        for described in self._described:
            match described:
                case formats.BareObjects() if text.startswith("{"):
                    bodies.append(partial(JsonCall, self._names))
                case formats.ObjectList(is_bare=True) if text.startswith("["):
                    bodies.append(self._object_list)
                case formats.PythonList(is_marked=False) if text.startswith("["):
                    bodies.append(self._python_list)
                case formats.NamedArguments(closing="") if self._may_begin_named(text, described.ending):
                    bodies.append(partial(NamedCall, described.ending, "", self._names))
        return _one_of(bodies) if bodies else None

    def _may_begin_named(self, text: str, ending: str) -> bool:
        """Return whether `text` may begin a call without its mark, which the prompt ends with."""
        heads = (name + ending for name in self._names)
        return any(head.startswith(text) or text.startswith(head) for head in heads)

    def _openings(self, described: formats.ToolCallFormat) -> Iterator[tuple[str, Callable[[], Body], Sequence[str]]]:
        """Yield the marks of a format, with what makes a reader, and what may end a group of calls."""
        names = self._names
        match described:
            case formats.MarkedObjects():
                for mark in (described.opening, *described.other_openings):
                    yield mark, partial(MarkedCall, described.closing, names), ()
            case formats.ObjectList():
                for mark in (described.opening, *described.other_openings):
                    yield mark, self._object_list, (described.closing,)
            case formats.PythonList():
                yield described.opening, self._python_list, (described.closing,)
                if described.is_marked:  # as SGLang's parser for LFM2: the list may be JSON
                    yield described.opening, self._object_list, (described.closing,)
            case formats.PythonLines():
                yield described.opening, partial(LineCall, described.closing, self._python_call), (described.closing,)
            case formats.NamedArguments():
                yield described.opening, partial(NamedCall, described.ending, described.closing, names), ()
            case formats.HeadedArguments():
                for mark in described.openings:
                    body = partial(HeadedCall, described.pattern, described.closings, names)
                    yield mark, body, (described.after, *described.other_afters)
            case formats.TaggedArguments():
                for mark in described.openings:
                    yield mark, partial(TaggedCall, described, mark, self._functions), (described.section[1].strip(),)
            case formats.QuotedArguments():
                yield described.opening, partial(QuotedCall, described, self._functions), ()
            case formats.EnvironmentCode():
                yield described.opening, partial(PythonTag, names), ()
            case formats.BareObjects():
                return

    def _python_call(self) -> Body:
        return PythonCall(self._names)

    def _python_list(self) -> Body:
        return ListedCall("[", self._python_call)

    def _object_list(self) -> Body:
        return ListedCall("[", partial(JsonCall, self._names))


def _one_of(bodies: Sequence[Callable[[], Body]]) -> Body:
    return bodies[0]() if len(bodies) == 1 else FirstThatFits([body() for body in bodies])
